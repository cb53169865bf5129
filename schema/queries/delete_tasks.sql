-- Failed (3) or Stopped (4) longer than the queue keeps their kind (docsched_kept_ms) -> deleted.
-- $1 queue text  $2 status int
-- One walk a reason: tasks_finished is in order of finished_at only within one. LIMIT 500 inside and outside: rows are
-- locked only as they are pulled through the outer one. The DELETE compares with the status that was read, not with $2:
-- that would tempt the planner, with statistics of before a mass failure, to walk all rows of that status.
WITH kinds AS MATERIALIZED (
  SELECT r.reason, docsched_now() - docsched_kept_ms(q, $2, r.reason) AS before
  FROM queues q
  CROSS JOIN docsched_reasons($1, $2) AS r (reason)
  WHERE q.queue = $1
),
old AS MATERIALIZED (
  SELECT t.task_id, t.task_version, t.status
  FROM kinds k
  CROSS JOIN LATERAL (
    SELECT t.task_id, t.task_version, t.status
    FROM task_scheduler_tasks t
    WHERE t.queue = $1 AND t.status = $2 AND t.status >= 2 AND t.reason = k.reason AND t.finished_at < k.before
    ORDER BY t.finished_at
    LIMIT 500
    FOR UPDATE OF t SKIP LOCKED
  ) t
  LIMIT 500
)
DELETE FROM task_scheduler_tasks t
USING old
WHERE t.queue = $1 AND t.task_id = old.task_id AND t.task_version = old.task_version AND t.status = old.status
RETURNING t.task_id
