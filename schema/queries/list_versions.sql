-- Versions of a task, newest first, at most 1000. $1 queue text  $2 task_id bigint
SELECT t.task_id, t.task_version, t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count,
       t.max_retries, t.attempt, t.run_at, t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at,
       t.create_at, t.update_at, a.progress_percent, a.progress_message
FROM task_scheduler_tasks t
LEFT JOIN attempts a ON a.attempt_id = t.attempt_id
WHERE t.queue = $1 AND t.task_id = $2
ORDER BY t.task_version DESC
LIMIT 1000
