-- What became of attempts that could not be settled.
-- $1 attempt_id text[]; returns one row an attempt that is known.
SELECT a.attempt_id, a.outcome, a.queue, a.task_id, a.task_version
FROM attempts a
WHERE a.attempt_id = ANY ($1::text[])
