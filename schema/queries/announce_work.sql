-- Tells the other instances which queues have work. $1 channel text  $2 payload text: the sender, then queue names
SELECT pg_notify($1, $2)
