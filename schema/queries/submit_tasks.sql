-- Decides and stores a group of submits and answers one row an entry, in order: docsched_submit.
-- $1 queue text[]  $2 task_id bigint[]  $3 task_version bigint[]  $4 priority int[]  $5 payload text[]
-- $6 run_at bigint[] (null: not named)  $7 max_retries int[] (null: not named)  $8 traceparent text[]
-- $9 probes int: nothing is waited for; entries whose key somebody else holds come back `locked`
SELECT ord, outcome, latest_version, latest_status, status, reason, priority, status_code, status_msg, retry_count,
       max_retries, attempt, run_at, next_retry_time, pending_since, deadline, started_at, finished_at, create_at,
       update_at
FROM docsched_submit(
  $1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::bigint[], $7::int[], $8::text[], $9::int)
ORDER BY ord
