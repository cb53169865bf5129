-- Version floors past the queue's version_floor_ms of tasks without any row. Walks the primary key from ($1, $2) in
-- steps; a floor that a submit holds is skipped. Returns deleted and the last key looked at (null at the end).
WITH step AS (
  SELECT f.queue, f.task_id, f.accepted_at + q.version_floor_ms < docsched_now() AS old
  FROM version_floors f
  JOIN queues q ON q.queue = f.queue
  WHERE (f.queue, f.task_id) > ($1::text, $2::bigint)
  ORDER BY f.queue, f.task_id
  LIMIT 500
),
free AS (
  SELECT f.queue, f.task_id
  FROM step
  JOIN version_floors f USING (queue, task_id)
  WHERE step.old
    AND NOT EXISTS (SELECT 1 FROM task_scheduler_tasks t WHERE t.queue = f.queue AND t.task_id = f.task_id)
  FOR UPDATE OF f SKIP LOCKED
),
gone AS (
  DELETE FROM version_floors f USING free, queues q
  WHERE f.queue = free.queue AND f.task_id = free.task_id AND q.queue = f.queue
    AND f.accepted_at + q.version_floor_ms < docsched_now()
  RETURNING f.task_id
)
SELECT (SELECT count(*)::int FROM gone) AS deleted, last.queue, last.task_id
FROM (SELECT 1) one
LEFT JOIN (SELECT queue, task_id FROM step ORDER BY queue DESC, task_id DESC LIMIT 1) last ON true
