-- Slots in use.
-- $1 epoch text  $2 queue text[]
-- Returns one row: in_use int[], in the order of $2; no row when the rows are of another epoch.
SELECT ARRAY(
    SELECT coalesce(u.in_use, 0)
    FROM unnest($2::text[]) WITH ORDINALITY AS q (queue, n)
    LEFT JOIN limiter_usage u ON u.queue = q.queue
    ORDER BY q.n
  ) AS in_use
FROM limiter_store s
WHERE s.epoch = $1
