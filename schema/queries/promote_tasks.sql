-- Delayed tasks and due retries become claimable.
-- The caller then orders their versions; until then the claim's own check keeps an older version back.
-- (SELECT docsched_now()): read once, so that it can bound the index scan.
WITH due AS (
  SELECT t.queue, t.task_id, t.task_version
  FROM task_scheduler_tasks t
  WHERE t.status = 0 AND t.hold = 1 AND t.ready_at <= (SELECT docsched_now())
  ORDER BY t.ready_at
  LIMIT 500
  FOR UPDATE SKIP LOCKED
)
UPDATE task_scheduler_tasks t
SET hold = 0, ready_at = NULL
FROM due
WHERE t.queue = due.queue AND t.task_id = due.task_id AND t.task_version = due.task_version
RETURNING t.queue, t.task_id, t.task_version
