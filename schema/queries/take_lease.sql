-- Takes a job's lease when it is free, expired, or ours. $1 job text  $2 holder text  $3 ttl_ms bigint
-- Returns one row when it is ours now.
INSERT INTO watcher_leases AS l (job, holder, expires_at)
VALUES ($1, $2, docsched_now() + $3)
ON CONFLICT (job) DO UPDATE
SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE l.expires_at < docsched_now() OR l.holder = excluded.holder
RETURNING l.job
