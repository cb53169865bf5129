-- Which of these queues have anything to claim. $1 queue text[]  $2 from bigint[]: of level 1 to 5, the first place of new
-- tasks that is looked at
SELECT q.queue
FROM unnest($1::text[]) AS q (queue)
CROSS JOIN LATERAL (
  SELECT 1
  FROM unnest($2::bigint[]) WITH ORDINALITY AS l (first, level)
  CROSS JOIN (VALUES (false), (true)) AS lane (retry)
  CROSS JOIN LATERAL (
    SELECT 1
    FROM task_scheduler_tasks t
    WHERE t.queue = q.queue AND t.level = l.level AND (t.retry_count > 0) = lane.retry AND t.status = 0 AND t.hold = 0
      AND t.place >= CASE WHEN lane.retry THEN 0 ELSE l.first END
    ORDER BY t.place
    LIMIT 1
  ) t
  LIMIT 1
) t
