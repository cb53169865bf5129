-- Higher first (docsched_order_versions): for rows that began or ceased to wait.
-- $1 queue text[]  $2 task_id bigint[]  $3 task_version bigint[]
SELECT docsched_order_versions($1::text[], $2::bigint[], $3::bigint[])
