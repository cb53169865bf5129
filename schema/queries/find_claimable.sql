-- Which of these queues have anything to claim. $1 queue text[]
-- Ordered as the index tasks_claim is, or the planner would look through the table for the first row that fits.
SELECT q.queue
FROM unnest($1::text[]) AS q (queue)
CROSS JOIN LATERAL (
  SELECT 1
  FROM task_scheduler_tasks t
  WHERE t.queue = q.queue AND t.status = 0 AND t.hold = 0
  ORDER BY t.level, t.retry_count > 0, t.place
  LIMIT 1
) t
