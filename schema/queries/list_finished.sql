-- Finished tasks of one queue and state, oldest first, after the cursor; a null filter lets all pass.
-- $1 queue text  $2 status int: 2, 3 or 4  $3 priority int  $4 reason text  $5 updated_after bigint
-- $6 finished_before bigint  $7, $8, $9 cursor: finished_at bigint, task_id bigint, task_version bigint  $10 limit int
-- One walk a reason, as tasks_finished is in order of finished_at only within one, and one for a Success, which has none;
-- the oldest of what they offer make the page. LIMIT 1000 (the most that $10 is) inside LIMIT $10 is for the planner, who
-- cannot see $10 in a plan made for all values.
WITH kinds AS MATERIALIZED (
  SELECT r.reason FROM docsched_reasons($1, $2) AS r (reason) WHERE $4::text IS NULL OR r.reason = $4
),
page AS (
  SELECT p.finished_at, p.task_id, p.task_version
  FROM (
    SELECT t.finished_at, t.task_id, t.task_version
    FROM kinds k
    CROSS JOIN LATERAL (
      SELECT t.finished_at, t.task_id, t.task_version
      FROM (
        SELECT t.finished_at, t.task_id, t.task_version
        FROM task_scheduler_tasks t
        WHERE t.queue = $1 AND t.status = $2 AND t.status >= 2 AND t.reason = k.reason
          AND t.finished_at < coalesce($6::bigint, 9223372036854775807)
          AND (t.finished_at, t.task_id, t.task_version) > ($7::bigint, $8::bigint, $9::bigint)
          AND ($3::int IS NULL OR t.priority = $3)
          AND ($5::bigint IS NULL OR t.update_at > $5)
        ORDER BY t.finished_at, t.task_id, t.task_version
        LIMIT 1000
      ) t
      LIMIT $10
    ) t
    UNION ALL
    (SELECT t.finished_at, t.task_id, t.task_version
     FROM (
       SELECT t.finished_at, t.task_id, t.task_version
       FROM task_scheduler_tasks t
       WHERE t.queue = $1 AND t.status = $2 AND t.status >= 2 AND t.reason IS NULL AND $4::text IS NULL
         AND t.finished_at < coalesce($6::bigint, 9223372036854775807)
         AND (t.finished_at, t.task_id, t.task_version) > ($7::bigint, $8::bigint, $9::bigint)
         AND ($3::int IS NULL OR t.priority = $3)
         AND ($5::bigint IS NULL OR t.update_at > $5)
       ORDER BY t.reason, t.finished_at, t.task_id, t.task_version
       LIMIT 1000
     ) t
     LIMIT $10)
  ) p
  ORDER BY p.finished_at, p.task_id, p.task_version
  LIMIT $10
)
SELECT t.queue, t.task_id, t.task_version, t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count,
       t.max_retries, t.attempt, t.run_at, t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at,
       t.create_at, t.update_at
FROM (SELECT * FROM page LIMIT 1000) p
JOIN task_scheduler_tasks t ON t.queue = $1 AND t.task_id = p.task_id AND t.task_version = p.task_version
ORDER BY p.finished_at, p.task_id, p.task_version
