-- Closes attempts and moves their tasks: the one statement for callbacks, push answers and time-outs.
-- p_attempt_id has no duplicates; p_after_ms: busy only, not before now + after_ms.
-- Answers one row an attempt that was open: closed now, applied is false when its task had moved on (cancelled); or
-- locked, and nothing changed.
--
-- verdict            | task
-- success            | Success
-- parser_failed, try_failed, expired | retry left: Pending after the back-off; else Failed
-- refused, result_too_large          | Failed
-- busy, broken, unsent               | Pending, no retry counted, pending_since stays
-- cancel_done        | none: only an attempt whose task was cancelled
-- 'expired' closes only what is past its deadline at this moment: a progress may have moved it.
-- Policy `stop`: what would be Pending again is Stopped when a higher version was accepted (floors outlive rows). A
-- submit of the higher version that is not committed yet is seen by the promotion, which all that is Pending again
-- goes through. Queues of policy `keep` look nothing up.
--
-- Locks attempts in id order, waiting; whoever comes second sees the attempt closed and changes nothing. Tasks that
-- somebody else holds (a submitter's own transaction, say) are skipped, so that nobody else of the group waits for them:
-- an attempt that its task still names stays open and is reported as locked.
-- The lookup goes through the two primary keys: `outcome IS NULL` says the same as `closed_at IS NULL`, but does not
-- tempt the planner to walk attempts_open with all its dead entries; LATERAL, or a group of a hundred would be joined
-- by reading a whole table that is not large yet. What became of an attempt is told apart by NOT IN and UNION ALL, not by
-- a join of held and decided, which the planner, guessing one row, does in quadratic time. Never UPDATE .. FROM (..
-- UNION ALL ..): for a row that changed since the snapshot (its acceptance was noted) PostgreSQL then updates nothing.
-- Planned once a connection, for any values (the SET clauses): planning it at each call cost a third of its time. So the
-- plan must be right however small the tables were when it was made: no scan from end to end; no merge of a whole index;
-- tables are reached from the arrays by their keys, never by the queue alone. (SELECT true ..) IS NULL instead of NOT
-- EXISTS: that might be answered from a hash of the whole table.
CREATE OR REPLACE FUNCTION docsched_settle(
  p_attempt_id text[], p_verdict text[], p_status_code bigint[], p_status_msg text[], p_result text[], p_after_ms bigint[])
RETURNS TABLE (
  attempt_id text, queue text, task_id bigint, task_version bigint, number int, target text, verdict text,
  applied boolean, locked boolean, status int, retry_count int, create_at bigint, claimed_at bigint, closed_at bigint,
  traceparent text)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT a.attempt_id, a.queue, a.task_id, a.task_version, a.task_row_id, a.claimed_at, a.number, a.target,
           v.status_code, v.status_msg, v.result, v.after_ms,
           CASE
             WHEN v.verdict <> 'expired' THEN v.verdict
             WHEN a.accepted_at IS NULL THEN 'in_doubt_expired'
             ELSE 'processing_expired'
           END AS verdict
    FROM (
      SELECT v.attempt_id, v.verdict, v.status_code, v.status_msg, v.result, v.after_ms
      FROM unnest(p_attempt_id, p_verdict, p_status_code, p_status_msg, p_result, p_after_ms)
        AS v (attempt_id, verdict, status_code, status_msg, result, after_ms)
      ORDER BY v.attempt_id COLLATE "C"
    ) v
    CROSS JOIN LATERAL (
      SELECT a.attempt_id, a.queue, a.task_id, a.task_version, a.task_row_id, a.claimed_at, a.accepted_at, a.number,
             a.target
      FROM attempts a
      WHERE a.attempt_id = v.attempt_id AND a.outcome IS NULL
        AND (v.verdict <> 'expired' OR a.deadline < docsched_now())
        AND (v.verdict <> 'cancel_done' OR (
          SELECT true FROM task_scheduler_tasks t
          WHERE t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
            AND t.attempt_id = a.attempt_id) IS NULL)
      FOR UPDATE OF a
    ) a
  ),
  clock AS MATERIALIZED (SELECT docsched_now() AS now),
  current AS MATERIALIZED (
    SELECT h.*, clock.now, t.retry_count, t.create_at, t.traceparent, q.retry_demote, q.version_policy,
           CASE
             WHEN h.verdict = 'success' THEN 2
             WHEN h.verdict IN ('busy', 'broken', 'unsent') THEN 0
             WHEN h.verdict IN ('refused', 'result_too_large') THEN 3
             WHEN t.retry_count < t.max_retries THEN 0
             ELSE 3
           END AS wanted_status,
           h.verdict NOT IN ('busy', 'broken', 'unsent') AS counted,
           clock.now + CASE
             WHEN h.verdict = 'busy' THEN h.after_ms
             WHEN h.verdict IN ('broken', 'unsent') THEN 0
             WHEN h.verdict NOT IN ('success', 'refused', 'result_too_large') THEN docsched_retry_delay(q.settings, t.retry_count)
           END AS ready_at
    FROM held h
    CROSS JOIN LATERAL (
      SELECT q AS settings, q.retry_demote, q.version_policy FROM queues q WHERE q.queue = h.queue LIMIT 1
    ) q
    CROSS JOIN clock
    JOIN task_scheduler_tasks t
      ON t.queue = h.queue AND t.task_id = h.task_id AND t.task_version = h.task_version
      AND t.status = 1 AND t.attempt_id = h.attempt_id
    FOR UPDATE OF t SKIP LOCKED
  ),
  decided AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.superseded_by IS NULL THEN s.wanted_status ELSE 4 END AS next_status
    FROM (
      SELECT c.*,
             CASE WHEN c.wanted_status = 0 AND c.version_policy = 'stop' THEN (
               SELECT f.task_version FROM version_floors f
               WHERE f.queue = c.queue AND f.task_id = c.task_id AND f.task_version > c.task_version
             ) END AS superseded_by
      FROM current c
    ) s
  ),
  rest AS MATERIALIZED (
    SELECT h.attempt_id, h.queue, h.task_id, h.task_version, h.claimed_at, h.number, h.target, h.verdict, h.status_msg,
           clock.now,
           coalesce((
             SELECT t.attempt_id = h.attempt_id FROM task_scheduler_tasks t
             WHERE t.queue = h.queue AND t.task_id = h.task_id AND t.task_version = h.task_version
           ), false) AS locked,
           (
             SELECT t.traceparent FROM task_scheduler_tasks t
             WHERE t.queue = h.queue AND t.task_id = h.task_id AND t.task_version = h.task_version
               AND t.id = h.task_row_id
           ) AS traceparent
    FROM held h
    CROSS JOIN clock
    WHERE h.attempt_id NOT IN (SELECT c.attempt_id FROM current c)
  ),
  closed AS (
    UPDATE attempts a
    SET closed_at = d.now,
        outcome = d.verdict,
        error = CASE WHEN d.verdict <> 'success' THEN d.status_msg END,
        accepted_at = CASE WHEN d.verdict IN ('success', 'parser_failed')
          THEN coalesce(a.accepted_at, d.now) ELSE a.accepted_at END
    FROM decided d
    WHERE a.attempt_id = d.attempt_id
  ),
  cancelled AS (
    UPDATE attempts a
    SET closed_at = r.now,
        outcome = 'cancelled',
        error = CASE WHEN r.verdict <> 'success' THEN r.status_msg END,
        accepted_at = CASE WHEN r.verdict IN ('success', 'parser_failed', 'cancel_done')
          THEN coalesce(a.accepted_at, r.now) ELSE a.accepted_at END
    FROM rest r
    WHERE a.attempt_id = r.attempt_id AND NOT r.locked
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
        update_at = greatest(d.now, t.update_at + 1),
        reason = CASE d.next_status WHEN 3 THEN d.verdict WHEN 4 THEN 'superseded' END,
        status_code = CASE WHEN d.next_status = 4 THEN NULL WHEN d.counted THEN d.status_code ELSE t.status_code END,
        status_msg = CASE
          WHEN d.next_status = 4 THEN 'version ' || d.superseded_by || ' was accepted'
          WHEN d.counted THEN d.status_msg
          ELSE t.status_msg END,
        result = CASE WHEN d.next_status = 2 THEN d.result END
    FROM decided d
    WHERE t.queue = d.queue AND t.task_id = d.task_id AND t.task_version = d.task_version
  )
  SELECT d.attempt_id, d.queue, d.task_id, d.task_version, d.number, d.target, d.verdict, true AS applied,
         false AS locked, d.next_status AS status, d.retry_count, d.create_at, d.claimed_at, d.now AS closed_at, d.traceparent
  FROM decided d
  UNION ALL
  SELECT r.attempt_id, r.queue, r.task_id, r.task_version, r.number, r.target, r.verdict, false,
         r.locked, NULL, NULL, NULL, r.claimed_at, r.now, r.traceparent
  FROM rest r;
END
$$;
