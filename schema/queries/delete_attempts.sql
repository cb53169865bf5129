-- Attempts closed at least 24 h ago whose task row is gone. Walks closed_at from $1 in steps, so that
-- attempts of rows that live long are not looked at again and again; the caller goes on from last_closed_at.
-- $1 closed_at bigint. Returns deleted, and last_closed_at (null at the end).
WITH old AS (
  SELECT a.attempt_id, a.closed_at,
         NOT EXISTS (
           SELECT 1 FROM task_scheduler_tasks t
           WHERE t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
             AND t.id = a.task_row_id) AS orphaned
  FROM attempts a
  WHERE a.closed_at IS NOT NULL AND a.closed_at > $1 AND a.closed_at < (SELECT docsched_now() - 86400000)
  ORDER BY a.closed_at
  LIMIT 500
),
gone AS (
  DELETE FROM attempts a USING old WHERE a.attempt_id = old.attempt_id AND old.orphaned RETURNING a.attempt_id
)
SELECT (SELECT count(*)::int FROM gone) AS deleted, (SELECT max(closed_at) FROM old) AS last_closed_at
