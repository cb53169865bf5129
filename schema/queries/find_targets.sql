-- Targets of a queue: how many of its attempts each has open, and its record (url null without) while it may not take all.
-- $1 queue text  $2 url text[]
-- Open attempts are counted only where there is a choice: that reads those of all queues (index attempts_open).
SELECT a.url AS asked, coalesce(o.open, 0) AS outstanding, g.url, g.failures, greatest(0, g.not_before - look.now)::int AS wait_ms,
       g.failed_at, g.error
FROM unnest($2::text[]) AS a (url)
CROSS JOIN (SELECT docsched_now() AS now OFFSET 0) look
LEFT JOIN targets g ON g.url = a.url AND docsched_target_room(g, look.now) IS NOT NULL
LEFT JOIN (
  SELECT t.target, count(*)::int AS open
  FROM attempts t
  WHERE t.queue = $1 AND t.closed_at IS NULL AND cardinality($2::text[]) > 1
  GROUP BY t.target
) o ON o.target = a.url
