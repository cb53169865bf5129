-- Whether a job's run ended within the last $2 ms. $1 job text  $2 within_ms bigint
SELECT l.job FROM watcher_leases l WHERE l.job = $1 AND l.completed_at >= docsched_now() - $2::bigint
