-- Which of these attempt ids are open, after a claim whose COMMIT outcome is unknown; with what a push needs.
-- $1 attempt_id text[]
-- cancelled: the task does not name the attempt any more, and the push is not to be sent.
SELECT a.attempt_id, a.task_id, a.task_version, coalesce(t.priority, 5) AS priority, coalesce(t.level, 5) AS level,
       coalesce(t.place, 0) AS place,
       a.number AS attempt, a.deadline, coalesce(t.payload, 'null') AS payload, t.traceparent,
       coalesce(t.create_at, a.claimed_at) AS create_at, coalesce(t.pending_since, a.claimed_at) AS pending_since,
       a.claimed_at AS started_at, true AS has_blocked, a.retry, a.target AS url, t.task_id IS NULL AS cancelled
FROM attempts a
LEFT JOIN task_scheduler_tasks t
  ON t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
  AND t.status = 1 AND t.attempt_id = a.attempt_id
WHERE a.attempt_id = ANY ($1::text[]) AND a.outcome IS NULL
