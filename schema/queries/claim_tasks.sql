-- docsched_claim (schema/functions/claim.sql), in the order of the line. $1 queue text  $2 attempt_ids text[]  $3 retries int
-- $4 level int[]  $5 start float8[]  $6 retry_start float8[]  $7 stride float8[]  $8 retry_first boolean[]
-- $9 retry_turn boolean  $10 epoch text  $11 url text[]  $12 outstanding int[]  $13 from bigint[]
SELECT gate, slots, wanted, records, attempt_id, task_id, task_version, priority, level, attempt, deadline, payload,
       traceparent, create_at, pending_since, started_at, has_blocked, place, retry, url
FROM docsched_claim(
  $1::text, $2::text[], $3::int, $4::int[], $5::float8[], $6::float8[], $7::float8[], $8::boolean[], $9::boolean,
  $10::text, $11::text[], $12::int[], $13::bigint[])
