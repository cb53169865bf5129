-- A broken target answered: it takes pushes again, few at first. $1 url text  $2 claimed_at bigint: of the push it answered
UPDATE targets g
SET failures = 0, not_before = 0, ramp_from = docsched_now(), ramp_claimed = 0, error = NULL
WHERE g.url = $1 AND g.failures > 0 AND g.failed_at <= $2::bigint
