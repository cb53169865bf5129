-- Failed tasks of one reason that have a newer version accepted, counted in steps of finished_at.
-- $1 queue text  $2 reason text  $3 finished_before bigint or null  $4 after bigint: of an earlier step
-- Returns how many, and `last` to go on after; null at the end.
SELECT count(f.task_id)::int AS found, CASE WHEN count(*) >= 10000 THEN max(t.finished_at) END AS last
FROM (
  SELECT t.task_id, t.task_version, t.finished_at
  FROM task_scheduler_tasks t
  WHERE t.queue = $1 AND t.status = 3 AND t.reason = $2
    AND t.finished_at > $4::bigint AND t.finished_at < coalesce($3::bigint, 9223372036854775807)
  ORDER BY t.finished_at
  FETCH FIRST 10000 ROWS WITH TIES
) t
LEFT JOIN version_floors f ON f.queue = $1 AND f.task_id = t.task_id AND f.task_version > t.task_version
