-- Cancels a Pending or Processing task. The attempt of a Processing one stays open and keeps its slot: it is cancelled
-- because the task row does not name it any more.
-- $1 queue text  $2 task_id bigint  $3 task_version bigint
-- Returns one row when it changed: has_blocked as it was, traceparent.
WITH task AS (
  SELECT t.queue, t.task_id, t.task_version, t.has_blocked
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.task_id = $2 AND t.task_version = $3 AND t.status IN (0, 1)
  FOR UPDATE
)
UPDATE task_scheduler_tasks t
SET status = 4, reason = 'cancelled', status_msg = 'cancelled', status_code = NULL, hold = 0, has_blocked = false,
    ready_at = NULL, next_retry_time = NULL, attempt_id = NULL, deadline = NULL, finished_at = docsched_now(),
    update_at = greatest(docsched_now(), t.update_at + 1)
FROM task
WHERE t.queue = task.queue AND t.task_id = task.task_id AND t.task_version = task.task_version
RETURNING task.has_blocked, t.traceparent
