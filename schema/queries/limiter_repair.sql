-- $1 epoch text  $2 queue text  $3 cut-off bigint (ms)  $4 ids to drop text[]
-- $5 ids text[] that must hold a slot with a mark  $6 ids text[] that must hold one without
-- Returns dropped int, added text[]; no row when the rows are of another epoch.
SELECT r.dropped, r.added FROM docsched_limiter_repair($1, $2, $3, $4, $5, $6) AS r
