-- Progress of an open attempt: stored and its deadline moved at most once a second; what is answered is what is stored.
-- $1 attempt_id text  $2 percent real  $3 message text
-- Returns one row a known attempt: closed, cancel_requested (its task does not name it any more: nothing is extended),
-- deadline.
-- The attempt's deadline is the one that counts; the task's is for show. With it the task's revision moves on, so that
-- whoever follows the task hears of the progress. A task that somebody else holds is left as it is until the next
-- report: waiting for it would hold the attempt's lock, and with that a settle.
WITH attempt AS (
  SELECT a.attempt_id, a.closed_at, a.deadline, a.max_deadline, a.progress_at, q.processing_expired_ms,
         t.task_id IS NULL AS cancel_requested
  FROM attempts a
  JOIN queues q ON q.queue = a.queue
  LEFT JOIN task_scheduler_tasks t
    ON t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
    AND t.attempt_id = a.attempt_id AND t.status = 1
  WHERE a.attempt_id = $1
),
stored AS (
  UPDATE attempts a
  SET progress_at = docsched_now(),
      progress_percent = coalesce($2, a.progress_percent),
      progress_message = coalesce($3, a.progress_message),
      accepted_at = coalesce(a.accepted_at, docsched_now()),
      deadline = CASE WHEN p.cancel_requested THEN a.deadline
        ELSE greatest(a.deadline, least(docsched_now() + p.processing_expired_ms, a.max_deadline)) END
  FROM attempt p
  WHERE a.attempt_id = p.attempt_id AND a.outcome IS NULL
    AND (a.progress_at IS NULL OR a.progress_at <= docsched_now() - 1000)
  RETURNING a.attempt_id, a.queue, a.task_id, a.task_version, a.deadline
),
task AS MATERIALIZED (
  SELECT t.queue, t.task_id, t.task_version, s.deadline
  FROM stored s
  JOIN task_scheduler_tasks t
    ON t.queue = s.queue AND t.task_id = s.task_id AND t.task_version = s.task_version
    AND t.status = 1 AND t.attempt_id = s.attempt_id
  FOR UPDATE OF t SKIP LOCKED
),
shown AS (
  UPDATE task_scheduler_tasks t
  SET deadline = task.deadline, update_at = greatest(docsched_now(), t.update_at + 1)
  FROM task
  WHERE t.queue = task.queue AND t.task_id = task.task_id AND t.task_version = task.task_version
)
SELECT p.closed_at IS NOT NULL AS closed, p.cancel_requested, coalesce(s.deadline, p.deadline) AS deadline
FROM attempt p
LEFT JOIN stored s ON true
