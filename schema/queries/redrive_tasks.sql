-- Puts the next of a queue's tasks that Failed for one reason back to Pending, oldest first, due one after another.
-- $1 queue text  $2 reason text  $3 finished_before bigint or null
-- $4, $5, $6 where an earlier batch ended: finished_at bigint, task_id bigint, task_version bigint
-- $7 interval_ms float8 between one and the next
-- Returns how many were looked at, redriven, and skipped for a newer version; where it ended; due_by of the last.
--
-- What is redriven is as after retry_task.sql, but for ready_at, and so is the order of locks: floors, then rows. What others
-- hold is neither redriven nor skipped. The queue's row is locked last, and keeps the rate over all calls, one after
-- another or at once: each begins where the last one's tasks end. Rows are guarded by the status that was read, not by a
-- constant: "status = 3" would tempt the planner, with statistics of before a mass failure, to walk all Failed ones.
WITH looked AS MATERIALIZED (
  SELECT t.finished_at, t.task_id, t.task_version, t.status
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.status = 3 AND t.reason = $2
    AND t.finished_at < coalesce($3::bigint, 9223372036854775807)
    AND (t.finished_at, t.task_id, t.task_version) > ($4::bigint, $5::bigint, $6::bigint)
  ORDER BY t.finished_at, t.task_id, t.task_version
  LIMIT 500
),
floors AS MATERIALIZED (
  SELECT l.finished_at, l.task_id, l.task_version, l.status, f.task_version AS latest
  FROM looked l
  JOIN version_floors f ON f.queue = $1 AND f.task_id = l.task_id
  ORDER BY l.task_id, l.task_version
  FOR UPDATE OF f SKIP LOCKED
),
chosen AS MATERIALIZED (
  SELECT f.finished_at, t.task_id, t.task_version, t.status
  FROM floors f
  JOIN task_scheduler_tasks t ON t.queue = $1 AND t.task_id = f.task_id AND t.task_version = f.task_version
  WHERE f.latest <= f.task_version AND t.status = f.status
  FOR UPDATE OF t SKIP LOCKED
),
numbered AS MATERIALIZED (
  SELECT c.task_id, c.task_version, c.status, nextval('task_ids') AS place, c.n
  FROM (
    SELECT c.task_id, c.task_version, c.status,
           row_number() OVER (ORDER BY c.finished_at, c.task_id, c.task_version) - 1 AS n
    FROM chosen c
  ) c
),
paced AS (
  UPDATE queues q
  SET redriven_until = greatest(q.redriven_until, docsched_now()) + ceil(c.redriven * $7::float8)::bigint
  FROM (SELECT count(*) AS redriven FROM numbered) c
  WHERE q.queue = $1 AND c.redriven > 0
  RETURNING q.redriven_until - ceil(c.redriven * $7::float8)::bigint AS start
),
redriven AS (
  UPDATE task_scheduler_tasks t
  SET status = 0, hold = 1, ready_at = p.start + floor(n.n * $7::float8)::bigint,
      pending_since = p.start + floor(n.n * $7::float8)::bigint, place = n.place, level = t.priority, retry_count = 0,
      update_at = greatest(docsched_now(), t.update_at + 1), run_at = NULL, next_retry_time = NULL, finished_at = NULL,
      reason = NULL, status_code = NULL, status_msg = NULL, result = NULL
  FROM numbered n
  CROSS JOIN paced p
  WHERE t.queue = $1 AND t.task_id = n.task_id AND t.task_version = n.task_version AND t.status = n.status
  RETURNING t.ready_at
)
SELECT (SELECT count(*)::int FROM looked) AS looked,
       (SELECT count(*)::int FROM redriven) AS redriven,
       (SELECT count(*)::int FROM floors WHERE latest > task_version) AS skipped,
       (SELECT max(ready_at) FROM redriven) AS due_by,
       last.finished_at, last.task_id, last.task_version
FROM (SELECT 1) one
LEFT JOIN (
  SELECT finished_at, task_id, task_version FROM looked ORDER BY finished_at DESC, task_id DESC, task_version DESC LIMIT 1
) last ON true
