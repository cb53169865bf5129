-- A target is broken: all instances leave it alone for a growing while. $1 url text
-- $2 claimed_at bigint: of the push that showed it  $3 error text
-- Pushes claimed before the failure on record tell nothing new: without that check one bad second would count as many
-- failures as there were pushes on the way. Returns its record, unless it is such a push.
INSERT INTO targets AS g (url, failures, not_before, failed_at, error)
VALUES ($1, 1, docsched_now() + docsched_left_alone_ms(1), docsched_now(), $3)
ON CONFLICT (url) DO UPDATE
SET failures = g.failures + 1,
    not_before = docsched_now() + docsched_left_alone_ms(g.failures + 1),
    failed_at = docsched_now(),
    error = excluded.error
WHERE g.failed_at <= $2::bigint
RETURNING g.url, g.failures, (g.not_before - docsched_now())::int AS wait_ms, g.failed_at, g.error
