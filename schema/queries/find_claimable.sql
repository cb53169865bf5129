-- One row when a queue has anything to claim. Ordered as the index tasks_claim is, or the planner would look through the
-- table for the first row that fits. $1 queue text
SELECT t.level
FROM task_scheduler_tasks t
WHERE t.queue = $1 AND t.status = 0 AND t.hold = 0
ORDER BY t.level, t.place
LIMIT 1
