-- What a report that names no attempt is about (fence `lenient`).
-- $1 queue text[]  $2 task_id bigint[]  $3 task_version bigint[]
-- Returns one row a known task: its attempt_id (null unless it is Processing), and whether it ended by a parser's report.
SELECT t.queue, t.task_id, t.task_version, t.attempt_id,
       t.status = 2 OR t.reason IN ('parser_failed', 'result_too_large', 'retention') AS reported
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS k (queue, task_id, task_version)
JOIN task_scheduler_tasks t
  ON t.queue = k.queue AND t.task_id = k.task_id AND t.task_version = k.task_version
