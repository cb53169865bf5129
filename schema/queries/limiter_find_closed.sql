-- Which of these attempts are not open (any more).
-- $1 attempt_id text[]
-- Returns attempt_id.
SELECT i.attempt_id
FROM unnest($1::text[]) AS i (attempt_id)
LEFT JOIN attempts a ON a.attempt_id = i.attempt_id AND a.closed_at IS NULL
WHERE a.attempt_id IS NULL
