-- Tasks in key order after the cursor; a null filter lets all pass.
-- $1 queue text  $2 status int  $3 priority int  $4 reason text  $5 updated_after bigint  $6 finished_before bigint
-- $7, $8, $9 cursor: queue text, task_id bigint, task_version bigint  $10 limit int
SELECT t.queue, t.task_id, t.task_version, t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count,
       t.max_retries, t.attempt, t.run_at, t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at,
       t.create_at, t.update_at, a.progress_percent, a.progress_message
FROM task_scheduler_tasks t
LEFT JOIN attempts a ON a.attempt_id = t.attempt_id
WHERE (t.queue, t.task_id, t.task_version) > ($7::text, $8::bigint, $9::bigint)
  AND ($1::text IS NULL OR t.queue = $1)
  AND ($2::int IS NULL OR t.status = $2)
  AND ($3::int IS NULL OR t.priority = $3)
  AND ($4::text IS NULL OR t.reason = $4)
  AND ($5::bigint IS NULL OR t.update_at > $5)
  AND ($6::bigint IS NULL OR t.finished_at < $6)
ORDER BY t.queue, t.task_id, t.task_version
LIMIT $10
