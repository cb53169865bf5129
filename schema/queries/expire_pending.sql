-- Pending longer than the queue's pending_expired_ms -> Failed. $1 queue text
-- Returns the keys; has_blocked rows make room for the version behind them. waited_ms: since it was due;
-- age_ms: since its submit.
-- (SELECT docsched_now() ...): read once, so that it can bound the index scan.
WITH late AS (
  SELECT t.task_id, t.task_version, t.has_blocked
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.status = 0 AND t.finished_at IS NULL AND t.deadline IS NULL
    AND t.pending_since < (SELECT docsched_now() - q.pending_expired_ms FROM queues q WHERE q.queue = $1)
  ORDER BY t.pending_since
  LIMIT 500
  FOR UPDATE OF t SKIP LOCKED
)
UPDATE task_scheduler_tasks t
SET status = 3, reason = 'pending_expired', status_code = NULL, hold = 0, has_blocked = false, ready_at = NULL,
    next_retry_time = NULL,
    status_msg =
      'not pushed within ' || (SELECT q.pending_expired_ms FROM queues q WHERE q.queue = $1) || ' ms of becoming due',
    finished_at = docsched_now(), update_at = greatest(docsched_now(), t.update_at + 1)
FROM late
WHERE t.queue = $1 AND t.task_id = late.task_id AND t.task_version = late.task_version AND t.status = 0
RETURNING t.queue, t.task_id, t.task_version, late.has_blocked, t.traceparent,
          t.finished_at - t.pending_since AS waited_ms, t.finished_at - t.create_at AS age_ms, t.retry_count
