-- Puts a Failed or Stopped task back to Pending by hand: a new place in line, retry_count 0, due at once.
-- $1 queue text  $2 task_id bigint  $3 task_version bigint
-- Returns one row when it changed. The floor's lock keeps a submit of a higher version out until this is committed;
-- a task whose floor is higher stays as it is.
WITH floor AS (
  SELECT f.queue, f.task_id
  FROM version_floors f
  WHERE f.queue = $1 AND f.task_id = $2 AND f.task_version <= $3
  FOR UPDATE
)
UPDATE task_scheduler_tasks t
SET status = 0, hold = 1, ready_at = docsched_now(), place = nextval('task_ids'), level = t.priority, retry_count = 0,
    pending_since = docsched_now(), update_at = greatest(docsched_now(), t.update_at + 1), run_at = NULL, next_retry_time = NULL,
    finished_at = NULL, reason = NULL, status_code = NULL, status_msg = NULL, result = NULL
FROM floor
WHERE t.queue = floor.queue AND t.task_id = floor.task_id AND t.task_version = $3 AND t.status IN (3, 4)
RETURNING t.traceparent
