-- Submits, decided by the table of docs/design.md as if they came one after another.
--
-- Arrays run in step; null run_at and max_retries mean "not named". Answers one row an entry, in no particular order:
-- outcome created | refreshed | recreated | existing | stale | unknown_queue | locked; where stale, latest_version and
-- latest_status (null when that row is cleaned up); else the columns of the task as it now is.
--
-- p_probes null: a key that another transaction holds is waited for. Else nothing is waited for longer than some
-- milliseconds: the entries of such a key are `locked`, nothing of them is stored, and the caller says them again, apart
-- from the others. Once an entry is locked, the later ones of its key are too, so that their order holds. Of keys that are
-- new it takes a millisecond each to find out which are held; after p_probes of them the rest counts as locked.
--
-- (1) The tasks' floors are locked in key order, so that two submits of one task never decide at once. Then one entry a
-- task is decided in a pass; a task named n times takes n passes. A pass: (2) lock the rows that may be changed, so that
-- a claim in flight is over, and decide by what is then committed; (3) write. Crash anywhere: nothing happened.
-- (2) leaves out what the floor makes stale whatever its state: such a row is not changed, and while it was locked
-- docsched_order_versions would pass it over, so that it stayed blocked behind a version that was claimed meanwhile.
-- Processing and Success rows are not locked either: they are not changed, and a callback would wait for a submitter's
-- long transaction.
--
-- Reads what is committed when each of its statements begins; at a stricter isolation level it fails with 40001 rather
-- than decide by an old state, since every accepted submit writes its floor.
--
-- Planned once a connection, for any values (the SET clauses): planning it at each call cost a third of its time. So the
-- plan must be right however small the tables were when it was made: no scan from end to end; no merge of a whole index;
-- tables are reached from the arrays by their keys, never by the queue alone.
CREATE OR REPLACE FUNCTION docsched_submit(
  p_queue text[], p_task_id bigint[], p_task_version bigint[], p_priority int[], p_payload text[],
  p_run_at bigint[], p_max_retries int[], p_traceparent text[], p_probes int)
RETURNS TABLE (
  ord int, outcome text, latest_version bigint, latest_status int,
  status int, reason text, priority smallint, status_code bigint, status_msg text, retry_count int, max_retries int,
  attempt int, run_at bigint, next_retry_time bigint, pending_since bigint, deadline bigint, started_at bigint,
  finished_at bigint, create_at bigint, update_at bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  v_now bigint;
  v_pass int[];
  v_passes int;
  v_stops boolean;
  v_todo int[];
  v_held int[];
  v_fresh int[] := '{}';
  v_known int[] := '{}';
  v_locked int[];
  v_outcome text[];
  v_latest bigint[];
  v_revision bigint[];
  v_ready_at bigint[];
  v_lower bigint[];
  v_lower_of int[];
  v_behind int[];
BEGIN
  SELECT array_agg(e.pass ORDER BY e.n), coalesce(max(e.pass), 0), coalesce(bool_or(e.version_policy = 'stop'), false),
         coalesce(array_agg(e.n::int ORDER BY e.queue COLLATE "C", e.task_id) FILTER (WHERE e.pass = 1), '{}')
  INTO v_pass, v_passes, v_stops, v_todo
  FROM (
    SELECT k.n, k.queue, k.task_id, q.version_policy, CASE WHEN q.queue IS NULL THEN 0
      ELSE row_number() OVER (PARTITION BY k.queue, k.task_id ORDER BY k.n) END::int AS pass
    FROM unnest(p_queue, p_task_id) WITH ORDINALITY AS k (queue, task_id, n)
    LEFT JOIN queues q ON q.queue = k.queue
  ) e;

  -- (1) A key not seen before is inserted, which locks it; the others are locked.
  WHILE v_todo <> '{}' LOOP
    v_held := docsched_insert_floors(p_queue, p_task_id, p_task_version, v_todo, p_probes);
    v_fresh := v_fresh || v_held;
    EXIT WHEN cardinality(v_held) = cardinality(v_todo);
    v_todo := ARRAY(SELECT k.n FROM unnest(v_todo) k (n) WHERE k.n <> ALL (v_held));

    v_held := ARRAY(
      SELECT k.n
      FROM unnest(v_todo) k (n)
      CROSS JOIN LATERAL (
        SELECT 1
        FROM version_floors f
        WHERE f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n]
        LIMIT 1
        FOR UPDATE SKIP LOCKED
      ) f);
    v_known := v_known || v_held;
    EXIT WHEN cardinality(v_held) = cardinality(v_todo);
    v_todo := ARRAY(SELECT k.n FROM unnest(v_todo) k (n) WHERE k.n <> ALL (v_held));

    IF p_probes IS NOT NULL THEN
      v_pass := docsched_pass_over(p_queue, p_task_id, v_pass, v_todo);
      EXIT;
    END IF;
    PERFORM 1
    FROM unnest(v_todo) k (n)
    JOIN version_floors f ON f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n]
    ORDER BY f.queue, f.task_id
    FOR UPDATE OF f;
  END LOOP;

  FOR v_i IN 1 .. v_passes LOOP
    v_now := docsched_now();
    IF v_i > 1 THEN
      v_known := ARRAY(SELECT e.n::int FROM unnest(v_pass) WITH ORDINALITY AS e (pass, n) WHERE e.pass = v_i);
    END IF;
    v_outcome := array_fill('created'::text, ARRAY[cardinality(v_pass)]);
    v_latest := NULL;
    v_revision := NULL;
    WHILE v_known <> '{}' LOOP
      -- (2)
      v_behind := '{}';
      IF v_stops THEN
        -- Of a queue that stops lower versions, those that are Pending: blocked ones wherever they stand, others among the
        -- task's highest rows. At most 1000 at a time; what is beyond stays blocked and is stopped by the clean-up.
        WITH lower AS (
          SELECT DISTINCT k.n, t.queue, t.task_id, t.task_version
          FROM unnest(v_known) k (n)
          JOIN queues q ON q.queue = p_queue[k.n] AND q.version_policy = 'stop'
          JOIN version_floors f ON f.queue = q.queue AND f.task_id = p_task_id[k.n]
          CROSS JOIN LATERAL (
            (SELECT b.queue, b.task_id, b.task_version
             FROM task_scheduler_tasks b
             WHERE b.queue = f.queue AND b.task_id = f.task_id AND b.task_version < p_task_version[k.n]
               AND b.status = 0 AND b.hold = 2
             ORDER BY b.task_version DESC
             LIMIT 1000)
            UNION ALL
            SELECT r.queue, r.task_id, r.task_version
            FROM (
              SELECT r.queue, r.task_id, r.task_version, r.status
              FROM task_scheduler_tasks r
              WHERE r.queue = f.queue AND r.task_id = f.task_id AND r.task_version < p_task_version[k.n]
              ORDER BY r.task_version DESC
              LIMIT 100
            ) r
            WHERE r.status = 0
          ) t
          WHERE f.task_version <= p_task_version[k.n] OR f.accepted_at + q.version_floor_ms <= v_now
        ),
        held AS MATERIALIZED (
          SELECT l.n, t.task_version
          FROM lower l
          JOIN task_scheduler_tasks t USING (queue, task_id, task_version)
          WHERE t.status = 0
          ORDER BY t.queue, t.task_id, t.task_version
          FOR UPDATE OF t SKIP LOCKED
        )
        SELECT array_agg(l.n), array_agg(l.task_version), coalesce(array_agg(l.n) FILTER (WHERE h.n IS NULL), '{}')
        INTO v_lower_of, v_lower, v_behind
        FROM lower l
        LEFT JOIN held h USING (n, task_version);
      END IF;

      WITH held AS MATERIALIZED (
        SELECT k.n, t.status, t.update_at,
               CASE WHEN p_run_at[k.n] IS NULL THEN t.ready_at
                    ELSE greatest(p_run_at[k.n], t.next_retry_time) END AS ready_at
        FROM unnest(v_known) k (n)
        JOIN queues q ON q.queue = p_queue[k.n]
        CROSS JOIN LATERAL (
          SELECT f.task_version, f.accepted_at
          FROM version_floors f
          WHERE f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n]
          LIMIT 1
        ) f
        CROSS JOIN LATERAL (
          SELECT t.status, t.update_at, t.ready_at, t.next_retry_time
          FROM task_scheduler_tasks t
          WHERE t.queue = p_queue[k.n] AND t.task_id = p_task_id[k.n] AND t.task_version = p_task_version[k.n]
            AND t.status IN (0, 3, 4)
            AND (f.task_version <= p_task_version[k.n] OR f.accepted_at + q.version_floor_ms <= v_now)
          LIMIT 1
          FOR UPDATE SKIP LOCKED
        ) t
      )
      SELECT array_agg(CASE
               WHEN d.pass <> v_i THEN 'other pass'
               WHEN d.known_n IS NULL THEN 'created'
               WHEN d.latest IS NOT NULL THEN 'stale'
               WHEN d.status IN (1, 2) THEN 'existing'
               WHEN d.status IS NOT NULL AND d.held_n IS NULL OR d.n = ANY (v_behind) THEN 'locked'
               WHEN d.status = 0 THEN 'refreshed'
               WHEN d.status IN (3, 4) THEN 'recreated'
               ELSE 'created'
             END ORDER BY d.n),
             array_agg(d.latest ORDER BY d.n),
             array_agg(d.update_at + 1 ORDER BY d.n),
             array_agg(d.ready_at ORDER BY d.n)
      INTO v_outcome, v_latest, v_revision, v_ready_at
      FROM (
        SELECT e.n, e.pass, k.n AS known_n, held.n AS held_n, coalesce(held.status, t.status) AS status, held.update_at,
               held.ready_at, greatest(
                 (SELECT max(h.task_version) FROM task_scheduler_tasks h
                  WHERE h.queue = f.queue AND h.task_id = f.task_id AND h.task_version > e.task_version),
                 CASE WHEN f.task_version > e.task_version AND f.accepted_at + q.version_floor_ms > v_now
                   THEN f.task_version END) AS latest
        FROM unnest(p_queue, p_task_id, p_task_version, v_pass) WITH ORDINALITY
          AS e (queue, task_id, task_version, pass, n)
        LEFT JOIN unnest(v_known) k (n) ON k.n = e.n
        LEFT JOIN held ON held.n = k.n
        LEFT JOIN queues q ON q.queue = e.queue
        LEFT JOIN LATERAL (
          SELECT f.queue, f.task_id, f.task_version, f.accepted_at
          FROM version_floors f
          WHERE k.n IS NOT NULL AND f.queue = e.queue AND f.task_id = e.task_id
          LIMIT 1
        ) f ON true
        LEFT JOIN LATERAL (
          SELECT t.status
          FROM task_scheduler_tasks t
          WHERE k.n IS NOT NULL AND held.n IS NULL
            AND t.queue = e.queue AND t.task_id = e.task_id AND t.task_version = e.task_version
          LIMIT 1
        ) t ON true
        OFFSET 0 -- so that `latest` is looked up once
      ) d;

      EXIT WHEN 'locked' <> ALL (v_outcome);
      v_locked := ARRAY(SELECT k.n FROM unnest(v_known) k (n) WHERE v_outcome[k.n] = 'locked');
      IF p_probes IS NOT NULL THEN
        v_pass := docsched_pass_over(p_queue, p_task_id, v_pass, v_locked);
        v_known := ARRAY(SELECT k.n FROM unnest(v_known) k (n) WHERE v_outcome[k.n] <> 'locked');
        EXIT;
      END IF;
      PERFORM 1
      FROM unnest(v_locked) k (n)
      JOIN task_scheduler_tasks t ON t.queue = p_queue[k.n] AND t.task_id = p_task_id[k.n]
      WHERE t.task_version = p_task_version[k.n] AND t.status IN (0, 3, 4)
        OR t.task_version < p_task_version[k.n] AND t.status = 0 AND v_behind <> '{}'
      ORDER BY t.queue, t.task_id, t.task_version
      FOR UPDATE OF t;
      v_now := docsched_now();
    END LOOP;

    -- (3)
    IF 'recreated' = ANY (v_outcome) THEN
      DELETE FROM task_scheduler_tasks t
      USING unnest(v_known) k (n)
      WHERE v_outcome[k.n] = 'recreated'
        AND t.queue = p_queue[k.n] AND t.task_id = p_task_id[k.n] AND t.task_version = p_task_version[k.n];
    END IF;
    IF v_outcome && '{created,recreated}' THEN
      INSERT INTO task_scheduler_tasks (
        queue, task_id, task_version, id, place, status, hold, level, priority, payload, max_retries, run_at, ready_at,
        pending_since, create_at, update_at, traceparent)
      SELECT e.queue, e.task_id, e.task_version, e.id, e.id, 0, CASE WHEN e.run_at > v_now THEN 1 ELSE 0 END,
             e.priority, e.priority, e.payload, e.max_retries, e.run_at, CASE WHEN e.run_at > v_now THEN e.run_at END,
             greatest(v_now, e.run_at), v_now, greatest(v_now, e.revision), e.traceparent
      FROM (
        SELECT nextval('task_ids') AS id, o.*
        FROM (
          SELECT e.queue, e.task_id, e.task_version, e.priority, e.payload, e.run_at,
                 coalesce(e.max_retries, q.max_retries) AS max_retries, e.traceparent, v_revision[e.n] AS revision
          FROM unnest(p_queue, p_task_id, p_task_version, p_priority, p_payload, p_run_at, p_max_retries, p_traceparent,
                      v_pass, v_outcome) WITH ORDINALITY
            AS e (queue, task_id, task_version, priority, payload, run_at, max_retries, traceparent, pass, outcome, n)
          JOIN queues q ON q.queue = e.queue
          WHERE e.pass = v_i AND e.outcome IN ('created', 'recreated')
          ORDER BY e.n
        ) o
      ) e;
    END IF;
    IF 'refreshed' = ANY (v_outcome) THEN
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
          hold = CASE WHEN v_ready_at[k.n] > v_now THEN 1 WHEN t.hold = 1 THEN 0 ELSE t.hold END,
          ready_at = CASE WHEN v_ready_at[k.n] > v_now THEN v_ready_at[k.n] END,
          traceparent = coalesce(p_traceparent[k.n], t.traceparent),
          update_at = greatest(v_now, t.update_at + 1)
      FROM unnest(v_known) k (n)
      CROSS JOIN LATERAL (SELECT q.retry_demote FROM queues q WHERE q.queue = p_queue[k.n] LIMIT 1) q
      WHERE v_outcome[k.n] = 'refreshed'
        AND t.queue = p_queue[k.n] AND t.task_id = p_task_id[k.n] AND t.task_version = p_task_version[k.n];
    END IF;
    IF v_known <> '{}' THEN
      UPDATE version_floors f
      SET task_version = p_task_version[k.n], accepted_at = v_now
      FROM unnest(v_known) k (n)
      WHERE v_outcome[k.n] <> 'stale' AND f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n];

      PERFORM docsched_order_versions(array_agg(p_queue[c.n]), array_agg(p_task_id[c.n]), array_agg(c.task_version))
      FROM (
        SELECT k.n, p_task_version[k.n] AS task_version FROM unnest(v_known) k (n)
        UNION ALL
        SELECT l.n, l.task_version FROM unnest(v_lower_of, v_lower) l (n, task_version)
      ) c
      WHERE v_outcome[c.n] IN ('created', 'recreated', 'refreshed')
      HAVING count(*) > 0;
    END IF;

    RETURN QUERY
    SELECT e.n::int, e.outcome, v_latest[e.n], (
             SELECT l.status
             FROM task_scheduler_tasks l
             WHERE l.queue = p_queue[e.n] AND l.task_id = p_task_id[e.n] AND l.task_version = v_latest[e.n]
           ), t.status, t.reason, t.priority, t.status_code, t.status_msg,
           t.retry_count, t.max_retries, t.attempt, t.run_at, t.next_retry_time, t.pending_since, t.deadline,
           t.started_at, t.finished_at, t.create_at, t.update_at
    FROM unnest(v_pass, v_outcome) WITH ORDINALITY AS e (pass, outcome, n)
    LEFT JOIN LATERAL (
      SELECT t.status, t.reason, t.priority, t.status_code, t.status_msg, t.retry_count, t.max_retries, t.attempt,
             t.run_at, t.next_retry_time, t.pending_since, t.deadline, t.started_at, t.finished_at, t.create_at, t.update_at
      FROM task_scheduler_tasks t
      WHERE t.queue = p_queue[e.n] AND t.task_id = p_task_id[e.n] AND t.task_version = p_task_version[e.n]
      LIMIT 1
    ) t ON e.outcome <> 'stale'
    WHERE e.pass = v_i;
  END LOOP;

  IF 1 > ANY (v_pass) THEN
    RETURN QUERY
    SELECT e.n::int, CASE e.pass WHEN 0 THEN 'unknown_queue' ELSE 'locked' END, NULL::bigint, NULL::int, NULL::int,
           NULL::text, NULL::smallint, NULL::bigint, NULL::text, NULL::int, NULL::int, NULL::int, NULL::bigint,
           NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
    FROM unnest(v_pass) WITH ORDINALITY AS e (pass, n)
    WHERE e.pass < 1;
  END IF;
END
$$;

-- Leaves entries `p_from`, and later ones of their keys, to no pass.
CREATE OR REPLACE FUNCTION docsched_pass_over(p_queue text[], p_task_id bigint[], p_pass int[], p_from int[])
RETURNS int[] LANGUAGE sql AS $$
  SELECT array_agg(CASE WHEN EXISTS (
           SELECT 1 FROM unnest(p_from) f (n)
           WHERE f.n <= e.n AND p_queue[f.n] = p_queue[e.n] AND p_task_id[f.n] = p_task_id[e.n]
         ) THEN -1 ELSE e.pass END ORDER BY e.n)
  FROM unnest(p_pass) WITH ORDINALITY AS e (pass, n)
$$;

-- Inserts the floors of entries p_todo that do not exist, in that order; returns the entries inserted. An INSERT waits
-- for a transaction that inserted the same key and is not over; with p_probes only some milliseconds: then each is
-- inserted by itself, and what is locked is left out.
CREATE OR REPLACE FUNCTION docsched_insert_floors(
  p_queue text[], p_task_id bigint[], p_task_version bigint[], p_todo int[], p_probes int)
RETURNS int[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_timeout text := current_setting('lock_timeout');
  v_setting text;
  v_n int;
  v_inserted int[];
BEGIN
  IF p_probes IS NULL THEN RETURN docsched_insert_absent_floors(p_queue, p_task_id, p_task_version, p_todo); END IF;
  BEGIN
    -- Commits of other instances are waited for, submitters' transactions are not.
    v_setting := set_config('lock_timeout', '10ms', true);
    v_inserted := docsched_insert_absent_floors(p_queue, p_task_id, p_task_version, p_todo);
  EXCEPTION WHEN lock_not_available THEN
    v_inserted := '{}';
    v_setting := set_config('lock_timeout', '1ms', true);
    FOREACH v_n IN ARRAY p_todo LOOP
      BEGIN
        v_inserted := v_inserted
          || docsched_insert_absent_floors(p_queue, p_task_id, p_task_version, ARRAY[v_n]);
      EXCEPTION WHEN lock_not_available THEN
        p_probes := p_probes - 1;
        EXIT WHEN p_probes <= 0;
      END;
    END LOOP;
  END;
  v_setting := set_config('lock_timeout', v_timeout, true);
  RETURN v_inserted;
END
$$;

CREATE OR REPLACE FUNCTION docsched_insert_absent_floors(
  p_queue text[], p_task_id bigint[], p_task_version bigint[], p_todo int[])
RETURNS int[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_queue text[];
  v_task_id bigint[];
BEGIN
  -- Only of absent ones: an INSERT that meets a floor would also wait for whoever is changing it.
  WITH inserted AS (
    INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
    SELECT p_queue[k.n], p_task_id[k.n], p_task_version[k.n], docsched_now()
    FROM unnest(p_todo) WITH ORDINALITY AS k (n, i)
    WHERE (SELECT 1 FROM version_floors f WHERE f.queue = p_queue[k.n] AND f.task_id = p_task_id[k.n]) IS NULL
    ORDER BY k.i
    ON CONFLICT (queue, task_id) DO NOTHING
    RETURNING queue, task_id
  )
  SELECT array_agg(i.queue), array_agg(i.task_id) INTO v_queue, v_task_id FROM inserted i;
  IF v_queue IS NULL THEN RETURN '{}'; END IF;
  IF cardinality(v_queue) = cardinality(p_todo) THEN RETURN p_todo; END IF;
  RETURN ARRAY(
    SELECT k.n
    FROM unnest(p_todo) k (n)
    WHERE (p_queue[k.n], p_task_id[k.n]) IN (SELECT i.queue, i.task_id FROM unnest(v_queue, v_task_id) i (queue, task_id)));
END
$$;
