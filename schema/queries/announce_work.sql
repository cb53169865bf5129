-- Tells the other instances to look for work. $1 channel text  $2 payload text
SELECT pg_notify($1, $2)
