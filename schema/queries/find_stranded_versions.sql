-- Blocked rows without a higher waiting version: left so by a crash between a claim and the ordering of what waited
-- behind it.
SELECT t.queue, t.task_id, t.task_version
FROM task_scheduler_tasks t
WHERE t.status = 0 AND t.hold = 2
  AND NOT EXISTS (
    SELECT 1 FROM task_scheduler_tasks h
    WHERE h.queue = t.queue AND h.task_id = t.task_id AND h.task_version > t.task_version
      AND h.status = 0 AND h.hold <> 1)
LIMIT 500
