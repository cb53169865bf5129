-- $1 text: epoch as observed, null for none  $2 new epoch text  $3 queue text[]  $4 open attempt's id text[], in step
-- Returns rebuilt boolean.
SELECT docsched_limiter_rebuild($1, $2, $3, $4) AS rebuilt
