-- Back-off before retry number retry_count + 1, in ms: strategy 'immediate' 0, 'fixed' base, 'exponential'
-- base * 2^retry_count. jitter j spreads it evenly over [1-j, 1+j]; the longest is max (or base, if that is more).
CREATE OR REPLACE FUNCTION docsched_retry_delay(q queues, retry_count int) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (CASE q.retry_strategy
      WHEN 'immediate' THEN 0
      WHEN 'fixed' THEN q.retry_base_ms
      ELSE least(greatest(q.retry_max_ms, q.retry_base_ms) / (1 + q.retry_jitter), q.retry_base_ms * 2 ^ least(retry_count, 40))
    END * (1 + q.retry_jitter * (2 * random() - 1)))::bigint
$$;
