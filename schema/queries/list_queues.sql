-- What an instance keeps in memory of each queue.
SELECT queue, target_url, concurrency_limit, priority_weights, push_timeout_ms::int AS push_timeout_ms,
       payload_max_bytes, result_max_bytes
FROM queues
ORDER BY queue
