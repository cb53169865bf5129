-- $1 epoch text  $2 queue text  $3 limit int  $4 ids text[]
-- Returns granted text[]; null when the rows are of another epoch.
SELECT docsched_limiter_acquire($1, $2, $3, $4) AS granted
