-- A target asked for patience: all instances leave it alone for that long, and then begin slowly. It is there, so failures
-- are over. $1 url text  $2 claimed_at bigint: of the push it answered so  $3 busy_ms bigint
-- Pushes claimed before the answer on record tell nothing new. Returns its record, unless it is such a push.
INSERT INTO targets AS g (url, failures, not_before, failed_at, ramp_from)
VALUES ($1, 0, docsched_now() + $3::bigint, docsched_now(), docsched_now() + $3::bigint)
ON CONFLICT (url) DO UPDATE
SET failures = 0, not_before = excluded.not_before, failed_at = excluded.failed_at, ramp_from = excluded.ramp_from,
    ramp_claimed = 0, error = NULL
WHERE g.failed_at <= $2::bigint
RETURNING g.url, g.failures, (g.not_before - docsched_now())::int AS wait_ms, g.failed_at, g.error
