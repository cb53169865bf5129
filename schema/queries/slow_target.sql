-- A target is broken or busy: it is left alone for a growing while, by all instances. $1 url text  $2 claimed_at bigint
-- $3 base_ms bigint  $4 max_ms bigint  $5 failures: 1 when broken, 0 when busy  $6 busy_ms bigint: how long when busy
-- Broken: base * 2^(failures so far), up to max. Pushes claimed before the failure on record tell nothing new: without
-- that check one bad second would count as many failures as there were pushes on the way.
INSERT INTO targets AS g (url, failures, not_before, failed_at)
VALUES ($1, $5::int, docsched_now() + CASE WHEN $5::int = 1 THEN $3::bigint ELSE $6::bigint END, docsched_now())
ON CONFLICT (url) DO UPDATE
SET failures = g.failures + $5::int,
    not_before = docsched_now() + CASE
      WHEN $5::int = 1 THEN least($4::bigint, $3::bigint * 2 ^ least(g.failures, 30))::bigint
      ELSE $6::bigint
    END,
    failed_at = docsched_now()
WHERE g.failed_at <= $2::bigint
RETURNING g.failures, (g.not_before - docsched_now())::int AS wait_ms
