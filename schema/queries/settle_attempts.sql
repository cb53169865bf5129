-- docsched_settle (schema/functions/settle.sql): closes attempts and moves their tasks.
-- $1 attempt_id text[]  $2 verdict text[]  $3 status_code bigint[]  $4 status_msg text[]  $5 result text[]
-- $6 after_ms bigint[]
SELECT attempt_id, queue, task_id, task_version, number, target, verdict, applied, locked, status, retry_count, create_at,
       claimed_at, closed_at, traceparent
FROM docsched_settle($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[])
