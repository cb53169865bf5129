-- A job's run has ended well. $1 job text
INSERT INTO watcher_leases AS l (job, holder, expires_at, completed_at)
VALUES ($1, '', 0, docsched_now())
ON CONFLICT (job) DO UPDATE
SET completed_at = excluded.completed_at
