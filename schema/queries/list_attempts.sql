-- Attempts of a task row, oldest first; never their ids. $1 queue text  $2 task_id bigint  $3 task_version bigint
-- Returns one row with number null when the task has no attempt.
SELECT a.number, a.target, a.claimed_at, a.deadline, a.accepted_at, a.closed_at, a.outcome, a.error,
       a.progress_percent, a.progress_message
FROM task_scheduler_tasks t
LEFT JOIN attempts a ON a.task_row_id = t.id
WHERE t.queue = $1 AND t.task_id = $2 AND t.task_version = $3
ORDER BY a.number
