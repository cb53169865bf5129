-- A target answered: pushed to at full rate again. $1 url text  $2 claimed_at bigint: of the push it answered
UPDATE targets g
SET failures = 0, not_before = 0
WHERE g.url = $1 AND g.failures > 0 AND g.failed_at <= $2::bigint
