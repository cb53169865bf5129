-- Which of these attempt ids exist, after a claim whose COMMIT outcome is unknown; with what a push needs.
-- $1 attempt_id text[]
SELECT a.attempt_id, a.task_id, a.task_version, t.priority, t.level, t.attempt, t.deadline, t.payload, t.traceparent,
       t.create_at, t.pending_since, t.started_at, true AS has_blocked
FROM attempts a
JOIN task_scheduler_tasks t
  ON t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
  AND t.status = 1 AND t.attempt_id = a.attempt_id
WHERE a.attempt_id = ANY ($1::text[]) AND a.outcome IS NULL
