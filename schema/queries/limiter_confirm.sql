-- $1 epoch text  $2 queue text  $3 claimed retries text[]  $4 claimed new tasks text[]  $5 unused text[]  $6 limit int
-- $7 retries int: the most slots that may hold a mark  $8 global int, 0 for none
-- Returns lost text[]; null when the rows are of another epoch.
SELECT docsched_limiter_confirm($1, $2, $3, $4, $5, $6, $7, $8) AS lost
