-- All open attempts: queue, ids text[]. Index: attempts_open (partial).
SELECT a.queue, array_agg(a.attempt_id) AS ids
FROM attempts a
WHERE a.closed_at IS NULL
GROUP BY a.queue
