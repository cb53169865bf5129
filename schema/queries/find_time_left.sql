-- How long from now until the last deadline of these attempts, ms; 0 when it has passed or none is open. A progress may
-- have moved it. $1 attempt_id text[]
SELECT least(greatest(0, coalesce(max(a.deadline), 0) - docsched_now()), 2147483647)::int AS left_ms
FROM attempts a
WHERE a.attempt_id = ANY ($1::text[]) AND a.outcome IS NULL
