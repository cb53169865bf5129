-- Writes a queue's settings from the environment; an unchanged row is left alone.
INSERT INTO queues AS q (
  queue, target_url, concurrency_limit, priority_weights, push_timeout_ms, pending_expired_ms, processing_expired_ms,
  processing_max_ms, success_expired_ms, cleanup_after_ms, version_floor_ms, max_retries, retry_strategy, retry_base_ms,
  retry_max_ms, retry_jitter, retry_demote, payload_max_bytes, result_max_bytes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
ON CONFLICT (queue) DO UPDATE
SET target_url = excluded.target_url, concurrency_limit = excluded.concurrency_limit,
    priority_weights = excluded.priority_weights, push_timeout_ms = excluded.push_timeout_ms,
    pending_expired_ms = excluded.pending_expired_ms, processing_expired_ms = excluded.processing_expired_ms,
    processing_max_ms = excluded.processing_max_ms, success_expired_ms = excluded.success_expired_ms,
    cleanup_after_ms = excluded.cleanup_after_ms, version_floor_ms = excluded.version_floor_ms,
    max_retries = excluded.max_retries, retry_strategy = excluded.retry_strategy,
    retry_base_ms = excluded.retry_base_ms, retry_max_ms = excluded.retry_max_ms,
    retry_jitter = excluded.retry_jitter, retry_demote = excluded.retry_demote,
    payload_max_bytes = excluded.payload_max_bytes, result_max_bytes = excluded.result_max_bytes
WHERE q IS DISTINCT FROM excluded
