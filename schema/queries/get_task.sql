-- One version of a task, or with $3 null the latest. payload only when $4.
-- $1 queue text  $2 task_id bigint  $3 task_version bigint  $4 with_payload boolean
SELECT t.task_id, t.task_version, t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count,
       t.max_retries, t.attempt, t.run_at, t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at,
       t.create_at, t.update_at, a.progress_percent, a.progress_message,
       t.result, CASE WHEN $4::boolean THEN t.payload END AS payload
FROM task_scheduler_tasks t
LEFT JOIN attempts a ON a.attempt_id = t.attempt_id
WHERE t.queue = $1 AND t.task_id = $2::bigint AND ($3::bigint IS NULL OR t.task_version = $3::bigint)
ORDER BY t.task_version DESC
LIMIT 1
