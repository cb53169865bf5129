-- Since when the oldest claimable task of each queue is pending: the first of each level and lane, by claim order.
SELECT q.queue, min(t.pending_since) AS pending_since
FROM queues q
CROSS JOIN generate_series(1, 5) AS l (level)
CROSS JOIN (VALUES (false), (true)) AS lane (retry)
CROSS JOIN LATERAL (
  SELECT t.pending_since
  FROM task_scheduler_tasks t
  WHERE t.queue = q.queue AND t.level = l.level AND (t.retry_count > 0) = lane.retry AND t.status = 0 AND t.hold = 0
  ORDER BY t.place
  LIMIT 1
) t
GROUP BY q.queue
