-- Submits, decided by the table of SPEC section 2 as if they came one after another.
--
-- Arrays run in step; null run_at and max_retries mean "not named". Answers one row an entry, in order: outcome
-- created | refreshed | recreated | existing | stale | unknown_queue; where stale, latest_version and latest_status
-- (null when that row is cleaned up); else the columns of the task as it now is.
--
-- One entry a task is decided in a pass; a task named n times takes n passes. A pass: (1) lock the tasks' floors in
-- key order, so that two submits of one task never decide at once; (2) lock the rows of the same versions, so that a
-- claim or settle in flight is over; (3) decide by what is then committed; (4) write. Crash anywhere: nothing happened.
-- (2) leaves out what the floor makes stale whatever its state: such a row is not changed, and while it was locked
-- docsched_order_versions would pass it over, so that it stayed blocked behind a version that was claimed meanwhile.
CREATE OR REPLACE FUNCTION docsched_submit(
  p_queue text[], p_task_id bigint[], p_task_version bigint[], p_priority int[], p_payload text[],
  p_run_at bigint[], p_max_retries int[], p_traceparent text[])
RETURNS TABLE (
  ord int, outcome text, latest_version bigint, latest_status int,
  status int, reason text, priority smallint, status_code bigint, status_msg text, retry_count int, max_retries int,
  attempt int, run_at bigint, next_retry_time bigint, pending_since bigint, deadline bigint, started_at bigint,
  finished_at bigint, create_at bigint, update_at bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  v_now bigint := docsched_now();
  v_pass int[];
  v_fresh int[];
  v_locked int;
  v_known int[];
  v_outcome text[];
  v_latest bigint[];
BEGIN
  SELECT array_agg(e.pass ORDER BY e.n) INTO v_pass
  FROM (
    SELECT k.n, CASE WHEN q.queue IS NULL THEN 0
      ELSE row_number() OVER (PARTITION BY k.queue, k.task_id ORDER BY k.n) END::int AS pass
    FROM unnest(p_queue, p_task_id) WITH ORDINALITY AS k (queue, task_id, n)
    LEFT JOIN queues q ON q.queue = k.queue
  ) e;

  FOR v_i IN 1 .. (SELECT max(p) FROM unnest(v_pass) p) LOOP
    -- (1) A key not seen before is inserted, which locks it; the others are locked. Repeated in the rare case that
    -- the clean-up deleted a floor in between.
    v_fresh := '{}';
    LOOP
      WITH inserted AS (
        INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
        SELECT e.queue, e.task_id, e.task_version, v_now
        FROM unnest(p_queue, p_task_id, p_task_version, v_pass) AS e (queue, task_id, task_version, pass)
        WHERE e.pass = v_i
        ORDER BY e.queue, e.task_id
        ON CONFLICT (queue, task_id) DO NOTHING
        RETURNING queue, task_id
      )
      SELECT v_fresh || coalesce(array_agg(e.n::int), '{}') INTO v_fresh
      FROM unnest(p_queue, p_task_id, v_pass) WITH ORDINALITY AS e (queue, task_id, pass, n)
      JOIN inserted i USING (queue, task_id)
      WHERE e.pass = v_i;

      SELECT coalesce(array_agg(e.n::int), '{}') INTO v_known
      FROM unnest(v_pass) WITH ORDINALITY AS e (pass, n)
      WHERE e.pass = v_i AND e.n <> ALL (v_fresh);
      EXIT WHEN v_known = '{}';

      SELECT count(*) INTO v_locked
      FROM (
        SELECT 1
        FROM unnest(v_known) k (n)
        JOIN version_floors f ON f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n]
        ORDER BY f.queue, f.task_id
        FOR UPDATE OF f
      ) l;
      EXIT WHEN v_locked = cardinality(v_known);
    END LOOP;

    v_outcome := array_fill('created'::text, ARRAY[cardinality(v_pass)]);
    v_latest := NULL;
    IF v_known <> '{}' THEN
      -- (2)
      PERFORM 1
      FROM unnest(v_known) k (n)
      JOIN queues q ON q.queue = p_queue[k.n]
      JOIN version_floors f ON f.queue = q.queue AND f.task_id = p_task_id[k.n]
      JOIN task_scheduler_tasks t
        ON t.queue = f.queue AND t.task_id = f.task_id AND t.task_version = p_task_version[k.n]
      WHERE f.task_version <= t.task_version OR f.accepted_at + q.version_floor_ms <= v_now
      ORDER BY t.queue, t.task_id
      FOR UPDATE OF t;

      -- (3)
      SELECT array_agg(CASE
               WHEN d.pass <> v_i THEN 'other pass'
               WHEN d.n = ANY (v_fresh) THEN 'created'
               WHEN d.latest IS NOT NULL THEN 'stale'
               WHEN d.status IN (1, 2) THEN 'existing'
               WHEN d.status = 0 THEN 'refreshed'
               WHEN d.status IN (3, 4) THEN 'recreated'
               ELSE 'created'
             END ORDER BY d.n),
             array_agg(d.latest ORDER BY d.n)
      INTO v_outcome, v_latest
      FROM (
        SELECT e.n, e.pass, t.status, greatest(
                 (SELECT max(h.task_version) FROM task_scheduler_tasks h
                  WHERE h.queue = f.queue AND h.task_id = f.task_id AND h.task_version > e.task_version),
                 CASE WHEN f.task_version > e.task_version AND f.accepted_at + q.version_floor_ms > v_now
                   THEN f.task_version END) AS latest
        FROM unnest(p_queue, p_task_id, p_task_version, v_pass) WITH ORDINALITY
          AS e (queue, task_id, task_version, pass, n)
        LEFT JOIN queues q ON q.queue = e.queue
        LEFT JOIN version_floors f ON f.queue = e.queue AND f.task_id = e.task_id AND e.pass = v_i
        LEFT JOIN task_scheduler_tasks t
          ON t.queue = e.queue AND t.task_id = e.task_id AND t.task_version = e.task_version AND e.pass = v_i
      ) d;
    END IF;

    -- (4)
    DELETE FROM task_scheduler_tasks t
    USING unnest(v_known) k (n)
    WHERE v_outcome[k.n] = 'recreated'
      AND t.queue = p_queue[k.n] AND t.task_id = p_task_id[k.n] AND t.task_version = p_task_version[k.n];

    INSERT INTO task_scheduler_tasks (
      queue, task_id, task_version, id, place, status, hold, level, priority, payload, max_retries, run_at, ready_at,
      pending_since, create_at, update_at, traceparent)
    SELECT e.queue, e.task_id, e.task_version, e.id, e.id, 0, CASE WHEN e.run_at > v_now THEN 1 ELSE 0 END,
           e.priority, e.priority, e.payload, e.max_retries, e.run_at, CASE WHEN e.run_at > v_now THEN e.run_at END,
           greatest(v_now, e.run_at), v_now, v_now, e.traceparent
    FROM (
      SELECT nextval('task_ids') AS id, o.*
      FROM (
        SELECT e.queue, e.task_id, e.task_version, e.priority, e.payload, e.run_at,
               coalesce(e.max_retries, q.max_retries) AS max_retries, e.traceparent
        FROM unnest(p_queue, p_task_id, p_task_version, p_priority, p_payload, p_run_at, p_max_retries, p_traceparent,
                    v_pass, v_outcome) WITH ORDINALITY
          AS e (queue, task_id, task_version, priority, payload, run_at, max_retries, traceparent, pass, outcome, n)
        JOIN queues q ON q.queue = e.queue
        WHERE e.pass = v_i AND e.outcome IN ('created', 'recreated')
        ORDER BY e.n
      ) o
    ) e;

    IF v_known <> '{}' THEN
      UPDATE task_scheduler_tasks t
      SET payload = p_payload[k.n],
          priority = p_priority[k.n],
          level = least(5, p_priority[k.n] + CASE WHEN t.retry_count > 0 THEN q.retry_demote ELSE 0 END),
          max_retries = coalesce(p_max_retries[k.n], t.max_retries),
          run_at = coalesce(p_run_at[k.n], t.run_at),
          -- A time-out that began stays as it is; one that was to begin at a run_at that is named anew begins there.
          pending_since = CASE WHEN p_run_at[k.n] IS NULL THEN t.pending_since ELSE greatest(
            least(t.pending_since, greatest(v_now, t.next_retry_time)),
            CASE WHEN p_run_at[k.n] > v_now THEN p_run_at[k.n] END) END,
          hold = CASE WHEN r.ready_at > v_now THEN 1 WHEN t.hold = 1 THEN 0 ELSE t.hold END,
          ready_at = CASE WHEN r.ready_at > v_now THEN r.ready_at END,
          traceparent = coalesce(p_traceparent[k.n], t.traceparent),
          update_at = v_now
      FROM unnest(v_known) k (n)
      JOIN queues q ON q.queue = p_queue[k.n]
      JOIN task_scheduler_tasks o
        ON o.queue = p_queue[k.n] AND o.task_id = p_task_id[k.n] AND o.task_version = p_task_version[k.n]
      CROSS JOIN LATERAL (
        SELECT CASE WHEN p_run_at[k.n] IS NULL THEN o.ready_at
                    ELSE greatest(p_run_at[k.n], o.next_retry_time) END AS ready_at
      ) r
      WHERE v_outcome[k.n] = 'refreshed'
        AND t.queue = o.queue AND t.task_id = o.task_id AND t.task_version = o.task_version AND t.status = 0;

      UPDATE version_floors f
      SET task_version = p_task_version[k.n], accepted_at = v_now
      FROM unnest(v_known) k (n)
      WHERE v_outcome[k.n] <> 'stale' AND f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n];

      PERFORM docsched_order_versions(
        array_agg(p_queue[k.n]), array_agg(p_task_id[k.n]), array_agg(p_task_version[k.n]))
      FROM unnest(v_known) k (n)
      WHERE v_outcome[k.n] IN ('created', 'recreated', 'refreshed')
      HAVING count(*) > 0;
    END IF;

    RETURN QUERY
    SELECT e.n::int, e.outcome, v_latest[e.n], l.status, t.status, t.reason, t.priority, t.status_code, t.status_msg,
           t.retry_count, t.max_retries, t.attempt, t.run_at, t.next_retry_time, t.pending_since, t.deadline,
           t.started_at, t.finished_at, t.create_at, t.update_at
    FROM unnest(v_pass, v_outcome) WITH ORDINALITY AS e (pass, outcome, n)
    LEFT JOIN task_scheduler_tasks t
      ON t.queue = p_queue[e.n] AND t.task_id = p_task_id[e.n] AND t.task_version = p_task_version[e.n]
      AND e.outcome <> 'stale'
    LEFT JOIN task_scheduler_tasks l
      ON l.queue = p_queue[e.n] AND l.task_id = p_task_id[e.n] AND l.task_version = v_latest[e.n]
    WHERE e.pass = v_i;
  END LOOP;

  RETURN QUERY
  SELECT e.n::int, 'unknown_queue'::text, NULL::bigint, NULL::int, NULL::int, NULL::text, NULL::smallint, NULL::bigint,
         NULL::text, NULL::int, NULL::int, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
         NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
  FROM unnest(v_pass) WITH ORDINALITY AS e (pass, n)
  WHERE e.pass = 0;
END
$$;
