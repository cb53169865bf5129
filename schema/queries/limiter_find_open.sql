-- All open attempts: queue, ids text[] of new tasks (fresh) and of retries. Index: attempts_open (partial).
SELECT a.queue,
       coalesce(array_agg(a.attempt_id) FILTER (WHERE NOT a.retry), '{}') AS fresh,
       coalesce(array_agg(a.attempt_id) FILTER (WHERE a.retry), '{}') AS retries
FROM attempts a
WHERE a.closed_at IS NULL
GROUP BY a.queue
