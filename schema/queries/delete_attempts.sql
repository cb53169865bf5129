-- Attempts closed at least 24 h ago whose task row is gone. Walks (closed_at, attempt_id) from ($1, $2) in steps, so that
-- attempts of rows that live long are not looked at again and again; the caller goes on from the last ones.
-- $1 closed_at bigint  $2 attempt_id text: many attempts close at one moment
-- Returns deleted, last_closed_at and last_attempt_id (null at the end).
WITH old AS (
  SELECT a.attempt_id, a.closed_at,
         NOT EXISTS (
           SELECT 1 FROM task_scheduler_tasks t
           WHERE t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
             AND t.id = a.task_row_id) AS orphaned
  FROM attempts a
  WHERE a.closed_at IS NOT NULL AND (a.closed_at, a.attempt_id) > ($1::bigint, $2::text)
    AND a.closed_at < (SELECT docsched_now() - 86400000)
  ORDER BY a.closed_at, a.attempt_id
  LIMIT 500
),
gone AS (
  DELETE FROM attempts a USING old WHERE a.attempt_id = old.attempt_id AND old.orphaned RETURNING a.attempt_id
)
SELECT (SELECT count(*)::int FROM gone) AS deleted, last.closed_at AS last_closed_at, last.attempt_id AS last_attempt_id
FROM (SELECT 1) one
LEFT JOIN (SELECT closed_at, attempt_id FROM old ORDER BY closed_at DESC, attempt_id DESC LIMIT 1) last ON true
