-- Which of these tasks changed, finished or are gone: one look for all who wait for or follow any of them.
-- $1 queue text[]  $2 task_id bigint[]  $3 task_version bigint[]: each key once
-- $4 waits boolean[]: somebody waits for its end  $5 revision bigint[]: the update_at its followers know; null when it has none
-- Returns n, the place of the key in the arrays, and the task without payload and result; status null when it is gone.
-- OFFSET 0: looked up key by key, however many there are; for thousands of keys the planner would rather walk a whole
-- table or index.
SELECT k.n::int AS n, t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count, t.max_retries, t.attempt,
       t.run_at, t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at, t.create_at, t.update_at,
       a.progress_percent, a.progress_message
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::boolean[], $5::bigint[]) WITH ORDINALITY
  AS k (queue, task_id, task_version, waits, revision, n)
LEFT JOIN LATERAL (
  SELECT t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count, t.max_retries, t.attempt, t.run_at,
         t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at, t.create_at, t.update_at, t.attempt_id
  FROM task_scheduler_tasks t
  WHERE t.queue = k.queue AND t.task_id = k.task_id AND t.task_version = k.task_version
  OFFSET 0
) t ON true
LEFT JOIN LATERAL (
  SELECT a.progress_percent, a.progress_message FROM attempts a WHERE a.attempt_id = t.attempt_id OFFSET 0
) a ON true
WHERE t.status IS NULL OR k.waits AND t.status >= 2 OR t.update_at <> k.revision
