-- Ends a job's lease early. $1 job text  $2 holder text
UPDATE watcher_leases l SET expires_at = 0 WHERE l.job = $1 AND l.holder = $2
