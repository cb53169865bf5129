-- What an instance keeps in memory of each queue; and the environment's settings in force.
SELECT q.queue, q.concurrency_limit, q.priority_weights, q.retry_share, q.fence, q.callback_auth, q.secrets, q.paused,
       q.payload_max_bytes, q.result_max_bytes, d.settings AS defaults,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
                 'url', t.target->'url', 'mode', coalesce(t.target->'mode', '"async"'),
                 'batch', coalesce(t.target->'batch', '1'),
                 'push_timeout_ms', coalesce(t.target->'push_timeout_ms', to_jsonb(q.push_timeout_ms)))
                 ORDER BY t.n), '[]')
        FROM jsonb_array_elements(q.targets) WITH ORDINALITY AS t (target, n)) AS targets
FROM queues q
CROSS JOIN queue_defaults d
ORDER BY q.queue
