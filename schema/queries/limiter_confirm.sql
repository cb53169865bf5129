-- $1 epoch text  $2 queue text  $3 limit int  $4 claimed text[]  $5 unused text[]
-- Returns lost text[]; null when the rows are of another epoch.
SELECT docsched_limiter_confirm($1, $2, $3, $4, $5) AS lost
