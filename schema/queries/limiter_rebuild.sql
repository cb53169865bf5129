-- $1 text: epoch as observed, null for none  $2 new epoch text
-- $3 queue text[]  $4 open attempt's id text[]  $5 whether it is a retry boolean[], in step
-- Returns rebuilt boolean.
SELECT docsched_limiter_rebuild($1, $2, $3, $4, $5) AS rebuilt
