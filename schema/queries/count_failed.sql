-- Failed tasks of one reason, counted in steps of finished_at, from the index alone.
-- $1 queue text  $2 reason text  $3 finished_before bigint or null  $4 after bigint: of an earlier step
-- Returns how many, and `last` to go on after; null at the end.
SELECT count(*)::int AS found, CASE WHEN count(*) >= 50000 THEN max(t.finished_at) END AS last
FROM (
  SELECT t.finished_at
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.status = 3 AND t.reason = $2
    AND t.finished_at > $4::bigint AND t.finished_at < coalesce($3::bigint, 9223372036854775807)
  ORDER BY t.finished_at
  FETCH FIRST 50000 ROWS WITH TIES
) t
