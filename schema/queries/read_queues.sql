-- Queues for an answer, by name. $1 queue text; null: all
SELECT docsched_show_queue(q) AS queue
FROM queues q
WHERE $1::text IS NULL OR q.queue = $1
ORDER BY q.queue
