-- Success longer than the queue's success_expired_ms -> Stopped, its result dropped. $1 queue text
-- (SELECT docsched_now() ...): read once, so that it can bound the index scan. A Success has no reason; saying so, and
-- ordering by it, makes the order that of tasks_finished. The UPDATE compares with the status that was read: a constant
-- would tempt the planner, when its statistics are old, to walk all rows of that status.
WITH old AS (
  SELECT t.task_id, t.task_version, t.status
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.status = 2 AND t.reason IS NULL
    AND t.finished_at < (SELECT docsched_now() - q.success_expired_ms FROM queues q WHERE q.queue = $1)
  ORDER BY t.reason, t.finished_at
  LIMIT 500
  FOR UPDATE OF t SKIP LOCKED
)
UPDATE task_scheduler_tasks t
SET status = 4, reason = 'retention', result = NULL, finished_at = docsched_now(),
    update_at = greatest(docsched_now(), t.update_at + 1)
FROM old
WHERE t.queue = $1 AND t.task_id = old.task_id AND t.task_version = old.task_version AND t.status = old.status
RETURNING t.task_id
