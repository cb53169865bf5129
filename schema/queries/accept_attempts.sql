-- Notes that parsers accepted these attempts (answered 2xx). Late on purpose: most are settled before it is needed,
-- and only a time-out reads it (processing_expired or in_doubt_expired).
-- $1 attempt_id text[]
UPDATE attempts a
SET accepted_at = docsched_now()
WHERE a.attempt_id = ANY ($1::text[]) AND a.outcome IS NULL AND a.accepted_at IS NULL
