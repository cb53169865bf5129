-- Which of these tasks are Success, Failed, Stopped or gone: one look for all waiting clients.
-- $1 queue text[]  $2 task_id bigint[]  $3 task_version bigint[]
SELECT k.queue, k.task_id, k.task_version
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS k (queue, task_id, task_version)
LEFT JOIN task_scheduler_tasks t
  ON t.queue = k.queue AND t.task_id = k.task_id AND t.task_version = k.task_version
WHERE t.status IS NULL OR t.status >= 2
