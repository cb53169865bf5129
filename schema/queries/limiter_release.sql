-- $1 epoch text  $2 queue text  $3 ids text[]
-- Returns released int; null when the rows are of another epoch.
SELECT docsched_limiter_release($1, $2, $3) AS released
