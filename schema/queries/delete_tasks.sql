-- Failed (3) or Stopped (4) longer than the queue's cleanup_after_ms -> deleted.
-- $1 queue text  $2 status int
-- (SELECT docsched_now() ...): read once, so that it can bound the index scan.
WITH old AS (
  SELECT t.task_id, t.task_version
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.status = $2 AND t.status >= 2
    AND t.finished_at < (SELECT docsched_now() - CASE $2 WHEN 3 THEN q.cleanup_failed_ms ELSE q.cleanup_stopped_ms END FROM queues q WHERE q.queue = $1)
  ORDER BY t.finished_at
  LIMIT 500
  FOR UPDATE OF t SKIP LOCKED
)
DELETE FROM task_scheduler_tasks t
USING old
WHERE t.queue = $1 AND t.task_id = old.task_id AND t.task_version = old.task_version AND t.status = $2
RETURNING t.task_id
