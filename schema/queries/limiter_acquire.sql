-- $1 epoch text  $2 queue text  $3 ids text[]  $4 limit int  $5 retries int: the most slots that may hold a mark
-- $6 global int, 0 for none  $7 guaranteed int  $8 want_ttl_ms bigint
-- Returns granted text[], retries int; no row when the rows are of another epoch.
SELECT a.granted, a.retries FROM docsched_limiter_acquire($1, $2, $3, $4, $5, $6, $7, $8) AS a
