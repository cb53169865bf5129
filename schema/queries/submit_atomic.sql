-- A group of submits, all or nothing (docsched_submit_atomic): rows like submit_tasks up to the first entry that is stale,
-- locked or of an unknown queue. When there is one, it is the last row, and nothing is stored.
-- $1 queue text[]  $2 task_id bigint[]  $3 task_version bigint[]  $4 priority int[]  $5 payload text[]
-- $6 run_at bigint[] (null: not named)  $7 max_retries int[] (null: not named)  $8 traceparent text[]
SELECT *
FROM docsched_submit_atomic($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::bigint[], $7::int[], $8::text[])
  AS (ord int, outcome text, latest_version bigint, latest_status int, status int, reason text, priority smallint,
      status_code bigint, status_msg text, retry_count int, max_retries int, attempt int, run_at bigint,
      next_retry_time bigint, pending_since bigint, deadline bigint, started_at bigint, finished_at bigint,
      create_at bigint, update_at bigint)
