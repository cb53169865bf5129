-- All slots, for a reconciliation.
-- $1 epoch text
-- Returns one row a queue: taken_at, queue, and in step ids text[], touched_at float8[], retry boolean[] (queue is null
-- when there are no slots at all); no row when the rows are of another epoch.
SELECT docsched_now()::float8 AS taken_at, l.queue, l.ids, l.touched_at, l.retry
FROM limiter_store s
LEFT JOIN (
  SELECT t.queue, array_agg(t.attempt_id) AS ids, array_agg(t.touched_at::float8) AS touched_at,
         array_agg(t.retry) AS retry
  FROM limiter_slots t
  GROUP BY t.queue
) l ON true
WHERE s.epoch = $1
