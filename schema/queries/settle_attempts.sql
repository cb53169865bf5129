-- Closes attempts and moves their tasks: the one statement for callbacks, push answers and time-outs.
-- $1 attempt_id text[] (no duplicates)  $2 verdict text[]  $3 status_code bigint[]  $4 status_msg text[]
-- $5 result text[]  $6 after_ms bigint[]: busy only, not before now + after_ms
-- Returns one row an attempt that was open and is closed now; applied is false when its task had moved on (cancelled).
--
-- verdict            | task
-- success            | Success
-- parser_failed, try_failed, expired | retry left: Pending after the back-off; else Failed
-- refused, result_too_large          | Failed
-- busy, broken, unsent               | Pending, no retry counted, pending_since stays
-- cancel_done        | none: only an attempt whose task was cancelled
-- 'expired' closes only what is past its deadline at this moment: a progress may have moved it.
--
-- Locks attempts in id order, then tasks in key order; whoever comes second sees the attempt closed and changes
-- nothing. The lookup goes through the two primary keys: `outcome IS NULL` says the same as `closed_at IS NULL`, but does
-- not tempt the planner to walk attempts_open with all its dead entries.
WITH held AS MATERIALIZED (
  SELECT a.attempt_id, a.queue, a.task_id, a.task_version, a.claimed_at, a.number, a.target,
         v.status_code, v.status_msg, v.result, v.after_ms,
         CASE
           WHEN v.verdict <> 'expired' THEN v.verdict
           WHEN a.accepted_at IS NULL THEN 'in_doubt_expired'
           ELSE 'processing_expired'
         END AS verdict
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[])
    AS v (attempt_id, verdict, status_code, status_msg, result, after_ms)
  JOIN attempts a ON a.attempt_id = v.attempt_id
  WHERE a.outcome IS NULL
    AND (v.verdict <> 'expired' OR a.deadline < docsched_now())
    AND (v.verdict <> 'cancel_done' OR NOT EXISTS (
      SELECT 1 FROM task_scheduler_tasks t
      WHERE t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
        AND t.attempt_id = a.attempt_id))
  ORDER BY a.attempt_id
  FOR UPDATE OF a
),
clock AS MATERIALIZED (SELECT docsched_now() AS now),
decided AS MATERIALIZED (
  SELECT h.*, clock.now, t.id, t.priority, t.create_at, t.traceparent, t.retry_count AS retries_before, q.retry_demote,
         CASE
           WHEN h.verdict = 'success' THEN 2
           WHEN h.verdict IN ('busy', 'broken', 'unsent') THEN 0
           WHEN h.verdict IN ('refused', 'result_too_large') THEN 3
           WHEN t.retry_count < t.max_retries THEN 0
           ELSE 3
         END AS next_status,
         h.verdict NOT IN ('busy', 'broken', 'unsent') AS counted,
         clock.now + CASE h.verdict
           WHEN 'busy' THEN h.after_ms
           WHEN 'broken' THEN 0
           WHEN 'unsent' THEN 0
           ELSE docsched_retry_delay(q, t.retry_count)
         END AS ready_at
  FROM held h
  JOIN queues q ON q.queue = h.queue
  CROSS JOIN clock
  JOIN task_scheduler_tasks t
    ON t.queue = h.queue AND t.task_id = h.task_id AND t.task_version = h.task_version
    AND t.status = 1 AND t.attempt_id = h.attempt_id
  ORDER BY t.queue, t.task_id, t.task_version
  FOR UPDATE OF t
),
closed AS (
  UPDATE attempts a
  SET closed_at = clock.now,
      outcome = CASE WHEN d.attempt_id IS NULL THEN 'cancelled' ELSE h.verdict END,
      error = CASE WHEN h.verdict <> 'success' THEN h.status_msg END,
      accepted_at = CASE WHEN h.verdict IN ('success', 'parser_failed', 'cancel_done')
        THEN coalesce(a.accepted_at, clock.now) ELSE a.accepted_at END
  FROM held h
  LEFT JOIN decided d ON d.attempt_id = h.attempt_id
  CROSS JOIN clock
  WHERE a.attempt_id = h.attempt_id
),
moved AS (
  UPDATE task_scheduler_tasks t
  SET status = d.next_status,
      attempt_id = NULL,
      deadline = NULL,
      hold = CASE WHEN d.next_status = 0 THEN 1 ELSE 0 END,
      ready_at = CASE WHEN d.next_status = 0 THEN d.ready_at END,
      next_retry_time = CASE WHEN d.next_status = 0 AND d.verdict NOT IN ('broken', 'unsent') THEN d.ready_at END,
      retry_count = CASE WHEN d.next_status = 0 AND d.counted THEN t.retry_count + 1 ELSE t.retry_count END,
      pending_since = CASE WHEN d.next_status = 0 AND d.counted THEN d.ready_at ELSE t.pending_since END,
      level = least(5, t.priority + CASE
        WHEN d.next_status = 0 AND d.counted OR t.retry_count > 0 THEN d.retry_demote ELSE 0 END),
      finished_at = CASE WHEN d.next_status >= 2 THEN d.now END,
      update_at = d.now,
      reason = CASE WHEN d.next_status = 3 THEN d.verdict END,
      status_code = CASE WHEN d.counted THEN d.status_code ELSE t.status_code END,
      status_msg = CASE WHEN d.counted THEN d.status_msg ELSE t.status_msg END,
      result = CASE WHEN d.next_status = 2 THEN d.result END
  FROM decided d
  WHERE t.queue = d.queue AND t.task_id = d.task_id AND t.task_version = d.task_version
  RETURNING d.attempt_id
)
SELECT h.attempt_id, h.queue, h.task_id, h.task_version, h.number, h.verdict, d.attempt_id IS NOT NULL AS applied,
       d.next_status AS status, d.create_at, h.claimed_at, clock.now AS closed_at, d.traceparent
FROM held h
CROSS JOIN clock
LEFT JOIN decided d ON d.attempt_id = h.attempt_id
