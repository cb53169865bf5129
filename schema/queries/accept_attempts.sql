-- Notes that parsers accepted these attempts (answered 2xx). Late on purpose: most are settled before it is needed,
-- and only a time-out reads it (processing_expired or in_doubt_expired). What is being settled needs no note.
-- $1 attempt_id text[]
WITH open AS (
  SELECT a.attempt_id
  FROM attempts a
  WHERE a.attempt_id = ANY ($1::text[]) AND a.outcome IS NULL AND a.accepted_at IS NULL
  ORDER BY a.attempt_id
  FOR UPDATE SKIP LOCKED
)
UPDATE attempts a
SET accepted_at = docsched_now()
FROM open
WHERE a.attempt_id = open.attempt_id
