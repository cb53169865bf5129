-- Up Migration

-- The one clock: PostgreSQL's, in milliseconds since the epoch. Not transaction time: a group commit may wait.
CREATE FUNCTION docsched_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
  RETURN (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- Settings in force for each queue. Written at start from the environment; every statement reads them here,
-- so that all instances decide alike.
CREATE TABLE queues (
  queue text COLLATE "C" CONSTRAINT queues_pkey PRIMARY KEY
    CONSTRAINT queues_name CHECK (queue ~ '^[a-z0-9_-]{1,64}$'),
  target_url text,
  concurrency_limit int NOT NULL CONSTRAINT queues_limit CHECK (concurrency_limit >= 0),
  priority_weights int[] NOT NULL CONSTRAINT queues_weights CHECK (cardinality(priority_weights) = 5),
  push_timeout_ms bigint NOT NULL,
  pending_expired_ms bigint NOT NULL,
  processing_expired_ms bigint NOT NULL,
  processing_max_ms bigint NOT NULL,
  success_expired_ms bigint NOT NULL,
  cleanup_after_ms bigint NOT NULL,
  version_floor_ms bigint NOT NULL,
  max_retries int NOT NULL,
  retry_strategy text NOT NULL CONSTRAINT queues_retry CHECK (retry_strategy IN ('immediate', 'fixed', 'exponential')),
  retry_base_ms bigint NOT NULL,
  retry_max_ms bigint NOT NULL,
  retry_jitter float8 NOT NULL CONSTRAINT queues_jitter CHECK (retry_jitter BETWEEN 0 AND 1),
  retry_demote int NOT NULL CONSTRAINT queues_demote CHECK (retry_demote BETWEEN 0 AND 4),
  payload_max_bytes int NOT NULL,
  result_max_bytes int NOT NULL
);

-- status: 0 Pending, 1 Processing, 2 Success, 3 Failed, 4 Stopped.
-- hold (of a Pending row): 0 claimable, 1 delayed until ready_at, 2 blocked by a higher waiting version.
-- level and place: where the row stands in line. level: its priority, lowered by retry_demote after a retry; place: its
-- id, or where a retry by hand put it; or better ones taken over from lower versions of the same task that wait behind
-- it (docsched_order_versions).
CREATE SEQUENCE task_ids;
CREATE TABLE task_scheduler_tasks (
  queue text COLLATE "C" NOT NULL,
  task_id bigint NOT NULL CONSTRAINT tasks_task_id CHECK (task_id >= 0),
  task_version bigint NOT NULL CONSTRAINT tasks_task_version CHECK (task_version >= 0),
  id bigint NOT NULL DEFAULT nextval('task_ids'),
  create_at bigint NOT NULL,
  update_at bigint NOT NULL,
  run_at bigint,
  pending_since bigint NOT NULL,
  ready_at bigint,
  next_retry_time bigint,
  started_at bigint,
  finished_at bigint,
  deadline bigint,
  place bigint NOT NULL,
  status_code bigint,
  status int NOT NULL,
  retry_count int NOT NULL DEFAULT 0,
  max_retries int NOT NULL,
  attempt int NOT NULL DEFAULT 0,
  priority smallint NOT NULL CONSTRAINT tasks_priority CHECK (priority BETWEEN 1 AND 5),
  level smallint NOT NULL CONSTRAINT tasks_level CHECK (level BETWEEN 1 AND 5),
  hold smallint NOT NULL DEFAULT 0 CONSTRAINT tasks_hold CHECK (hold BETWEEN 0 AND 2),
  has_blocked boolean NOT NULL DEFAULT false,
  attempt_id text COLLATE "C",
  reason text,
  status_msg text,
  traceparent text,
  payload text NOT NULL,
  result text,
  CONSTRAINT tasks_pkey PRIMARY KEY (queue, task_id, task_version),
  CONSTRAINT tasks_status CHECK (status BETWEEN 0 AND 4),
  CONSTRAINT tasks_finished CHECK ((status >= 2) = (finished_at IS NOT NULL)),
  CONSTRAINT tasks_attempt CHECK ((status = 1) = (attempt_id IS NOT NULL)),
  CONSTRAINT tasks_delayed CHECK ((status = 0 AND hold = 1) = (ready_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER SEQUENCE task_ids OWNED BY task_scheduler_tasks.id;

-- There is no index on Processing rows on purpose: settle goes through the primary key, and a small partial index
-- would tempt the planner to walk its dead entries. What is Processing is found through its open attempt.
CREATE INDEX tasks_claim ON task_scheduler_tasks (queue, level, place) WHERE status = 0 AND hold = 0;
CREATE INDEX tasks_delayed ON task_scheduler_tasks (ready_at) WHERE status = 0 AND hold = 1;
CREATE INDEX tasks_blocked ON task_scheduler_tasks (queue, task_id, task_version) WHERE status = 0 AND hold = 2;
-- Pending rows, said so that the claim's own condition does not imply it: the claim must use tasks_claim.
CREATE INDEX tasks_pending ON task_scheduler_tasks (queue, pending_since) WHERE finished_at IS NULL AND deadline IS NULL;
CREATE INDEX tasks_finished ON task_scheduler_tasks (queue, status, finished_at) WHERE status >= 2;

-- The highest version ever accepted for a task; outlives the rows. Its row is also the lock that serialises
-- submits of one task.
CREATE TABLE version_floors (
  queue text COLLATE "C" NOT NULL,
  task_id bigint NOT NULL,
  task_version bigint NOT NULL,
  accepted_at bigint NOT NULL,
  CONSTRAINT version_floors_pkey PRIMARY KEY (queue, task_id)
) WITH (fillfactor = 90);

-- One try to have a task parsed. task_row_id is the task row's id: a recreated task has a new one.
-- accepted_at: when the parser was first known to have accepted it. An open attempt whose task row does not name it
-- any more was cancelled; it keeps its slot until callback, progress with done, or deadline.
CREATE TABLE attempts (
  attempt_id text COLLATE "C" CONSTRAINT attempts_pkey PRIMARY KEY,
  task_row_id bigint NOT NULL,
  queue text COLLATE "C" NOT NULL,
  task_id bigint NOT NULL,
  task_version bigint NOT NULL,
  claimed_at bigint NOT NULL,
  deadline bigint NOT NULL,
  max_deadline bigint NOT NULL,
  accepted_at bigint,
  closed_at bigint,
  progress_at bigint,
  number int NOT NULL,
  progress_percent real,
  target text NOT NULL,
  outcome text,
  error text,
  progress_message text,
  CONSTRAINT attempts_closed CHECK ((closed_at IS NULL) = (outcome IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX attempts_of_task ON attempts (task_row_id);
CREATE INDEX attempts_open ON attempts (deadline) WHERE closed_at IS NULL;
CREATE INDEX attempts_closed_at ON attempts (closed_at) WHERE closed_at IS NOT NULL;

-- Parsers that are broken or busy are left alone until not_before; shared by all instances.
CREATE TABLE targets (
  url text COLLATE "C" CONSTRAINT targets_pkey PRIMARY KEY,
  failures int NOT NULL,
  not_before bigint NOT NULL,
  failed_at bigint NOT NULL
) WITH (fillfactor = 50);

-- Which limiter store is in force. One row. seen_at/seen_by: the last proof by an instance that the store holds
-- this epoch; while it is fresh no other store may be opened.
CREATE TABLE limiter_state (
  only_row boolean CONSTRAINT limiter_state_pkey PRIMARY KEY DEFAULT true CONSTRAINT limiter_state_one CHECK (only_row),
  backend text NOT NULL,
  epoch text NOT NULL,
  seen_by text NOT NULL,
  seen_at bigint NOT NULL
) WITH (fillfactor = 50);

-- The PostgreSQL limiter. limiter_store: the epoch its rows belong to. limiter_usage: in_use counts the queue's rows
-- in limiter_slots; its row is what changes of a queue's slots serialise on.
--
-- UNLOGGED: a slot costs no wait for the disk. A crash of PostgreSQL empties all three together, the epoch is then
-- gone, and the limiter is rebuilt from the open attempts like one whose Redis was restarted.
CREATE UNLOGGED TABLE limiter_store (
  only_row boolean CONSTRAINT limiter_store_pkey PRIMARY KEY DEFAULT true CONSTRAINT limiter_store_one CHECK (only_row),
  epoch text NOT NULL
);
CREATE UNLOGGED TABLE limiter_usage (
  queue text COLLATE "C" CONSTRAINT limiter_usage_pkey PRIMARY KEY,
  in_use int NOT NULL CONSTRAINT limiter_usage_in_use CHECK (in_use >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE UNLOGGED TABLE limiter_slots (
  attempt_id text COLLATE "C" CONSTRAINT limiter_slots_pkey PRIMARY KEY,
  queue text COLLATE "C" NOT NULL,
  touched_at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The functions below are plpgsql because each of its statements sees what was committed before it: what is read after
-- the queue's row is locked is the truth. (One statement has one snapshot, older than the lock it waits for.)
-- Whoever waits for a queue's row holds no other lock a rebuild needs, so there is no deadlock with it.

-- Locks the queue's row and answers its in_use; null when the rows are of another epoch. A rebuild deletes the row, so
-- it waits for its holder; whoever comes after it sees the new epoch.
CREATE FUNCTION docsched_limiter_lock(p_epoch text, p_queue text) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_in_use int;
BEGIN
  LOOP
    SELECT u.in_use INTO v_in_use FROM limiter_usage u WHERE u.queue = p_queue FOR UPDATE;
    IF FOUND THEN
      PERFORM 1 FROM limiter_store s WHERE s.epoch = p_epoch;
      RETURN CASE WHEN FOUND THEN v_in_use END;
    END IF;
    PERFORM 1 FROM limiter_store s WHERE s.epoch = p_epoch FOR KEY SHARE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    INSERT INTO limiter_usage (queue, in_use) VALUES (p_queue, 0) ON CONFLICT (queue) DO NOTHING;
  END LOOP;
END
$$;

-- Takes slots while in_use is below the limit. Returns the granted ids, those already held among them; null: lost.
CREATE FUNCTION docsched_limiter_acquire(p_epoch text, p_queue text, p_limit int, p_ids text[])
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_in_use int := docsched_limiter_lock(p_epoch, p_queue);
  v_held text[];
  v_taken text[];
BEGIN
  IF v_in_use IS NULL THEN RETURN NULL; END IF;
  v_held := ARRAY(SELECT s.attempt_id FROM limiter_slots s WHERE s.attempt_id = ANY (p_ids));
  v_taken := CASE WHEN v_held = '{}' THEN p_ids
    ELSE ARRAY(SELECT i.id FROM unnest(p_ids) WITH ORDINALITY AS i (id, n) WHERE i.id <> ALL (v_held) ORDER BY i.n) END;
  v_taken := v_taken[1 : greatest(0, p_limit - v_in_use)];
  IF v_taken <> '{}' THEN
    INSERT INTO limiter_slots (attempt_id, queue, touched_at)
    SELECT t.id, p_queue, docsched_now() FROM unnest(v_taken) AS t (id);
    UPDATE limiter_usage SET in_use = in_use + cardinality(v_taken) WHERE queue = p_queue;
  END IF;
  RETURN CASE WHEN v_held = '{}' THEN v_taken
    ELSE ARRAY(
      SELECT i.id FROM unnest(p_ids) WITH ORDINALITY AS i (id, n) WHERE i.id = ANY (v_held || v_taken) ORDER BY i.n) END;
END
$$;

-- Gives slots back; ids that hold none are passed over. Returns how many were given back; null: lost.
CREATE FUNCTION docsched_limiter_release(p_epoch text, p_queue text, p_ids text[])
RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_count int;
BEGIN
  IF docsched_limiter_lock(p_epoch, p_queue) IS NULL THEN RETURN NULL; END IF;
  DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (p_ids) AND s.queue = p_queue;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  UPDATE limiter_usage SET in_use = in_use - v_count WHERE queue = p_queue AND v_count > 0;
  RETURN v_count;
END
$$;

-- After the claim commit: unused ids are released; a claimed id that holds a slot keeps it while in_use is at most the
-- limit, else gives it back; one that holds none takes a free one. A kept slot is touched, so that a reconciliation
-- under way cannot drop it. Returns the lost ids, which hold no slot now; null: lost.
CREATE FUNCTION docsched_limiter_confirm(
  p_epoch text, p_queue text, p_limit int, p_claimed text[], p_unused text[])
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_in_use int;
  v_held text[];
  v_refused text[];
  v_absent text[];
  v_taken text[];
BEGIN
  IF docsched_limiter_release(p_epoch, p_queue, p_unused) IS NULL THEN RETURN NULL; END IF;
  v_in_use := docsched_limiter_lock(p_epoch, p_queue);
  v_held := ARRAY(
    SELECT s.attempt_id FROM unnest(p_claimed) WITH ORDINALITY AS c (id, n)
    JOIN limiter_slots s ON s.attempt_id = c.id
    ORDER BY c.n);
  v_refused := v_held[1 : greatest(0, v_in_use - p_limit)];
  UPDATE limiter_slots s SET touched_at = docsched_now() WHERE s.attempt_id = ANY (v_held);
  IF cardinality(v_held) = cardinality(p_claimed) AND v_refused = '{}' THEN RETURN '{}'; END IF;

  v_absent := ARRAY(
    SELECT c.id FROM unnest(p_claimed) WITH ORDINALITY AS c (id, n) WHERE c.id <> ALL (v_held) ORDER BY c.n);
  v_taken := v_absent[1 : greatest(0, p_limit - v_in_use)];
  DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (v_refused);
  INSERT INTO limiter_slots (attempt_id, queue, touched_at)
  SELECT t.id, p_queue, docsched_now() FROM unnest(v_taken) AS t (id);
  UPDATE limiter_usage
  SET in_use = in_use - cardinality(v_refused) + cardinality(v_taken)
  WHERE queue = p_queue;
  RETURN v_refused || v_absent[cardinality(v_taken) + 1 :];
END
$$;

-- Applies what a reconciliation planned. The plan may be old by now: a slot touched after the cut-off was confirmed
-- meanwhile and stays, and one that is there by now is not added again. Returns no row: lost.
CREATE FUNCTION docsched_limiter_repair(
  p_epoch text, p_queue text, p_cutoff bigint, p_drop text[], p_add text[])
RETURNS TABLE (dropped int, added text[]) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF docsched_limiter_lock(p_epoch, p_queue) IS NULL THEN RETURN; END IF;
  DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (p_drop) AND s.queue = p_queue AND s.touched_at <= p_cutoff;
  GET DIAGNOSTICS dropped = ROW_COUNT;
  WITH inserted AS (
    INSERT INTO limiter_slots AS s (attempt_id, queue, touched_at)
    SELECT a.id, p_queue, docsched_now() FROM unnest(p_add) a (id)
    ON CONFLICT (attempt_id) DO NOTHING
    RETURNING s.attempt_id
  )
  SELECT coalesce(array_agg(i.attempt_id), '{}') INTO added FROM inserted i;
  UPDATE limiter_usage SET in_use = in_use - dropped + cardinality(added) WHERE queue = p_queue;
  RETURN NEXT;
END
$$;

-- Replaces all slots by those of the open attempts (queue and id in step) and opens a new epoch. False when the store
-- holds another epoch than observed (null: none): somebody else was first, nothing is changed.
CREATE FUNCTION docsched_limiter_rebuild(p_observed text, p_epoch text, p_queues text[], p_ids text[])
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_observed IS NULL THEN
    INSERT INTO limiter_store (epoch) VALUES (p_epoch) ON CONFLICT (only_row) DO NOTHING;
  ELSE
    -- FOR UPDATE, not just the UPDATE: it must also wait for those who are about to insert a queue's row.
    PERFORM 1 FROM limiter_store s WHERE s.epoch = p_observed FOR UPDATE;
    UPDATE limiter_store SET epoch = p_epoch WHERE epoch = p_observed;
  END IF;
  IF NOT FOUND THEN RETURN false; END IF;
  DELETE FROM limiter_usage;
  DELETE FROM limiter_slots;
  INSERT INTO limiter_slots (attempt_id, queue, touched_at)
  SELECT o.id, o.queue, docsched_now() FROM unnest(p_queues, p_ids) AS o (queue, id);
  INSERT INTO limiter_usage (queue, in_use)
  SELECT o.queue, count(*) FROM unnest(p_queues) AS o (queue) GROUP BY o.queue;
  RETURN true;
END
$$;

-- The watcher's jobs: when each last ended (completed_at), and their leases when there is no Redis.
CREATE TABLE watcher_leases (
  job text CONSTRAINT watcher_leases_pkey PRIMARY KEY,
  holder text NOT NULL,
  expires_at bigint NOT NULL,
  completed_at bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Back-off before retry number retry_count + 1, in ms: strategy 'immediate' 0, 'fixed' base, 'exponential'
-- base * 2^retry_count up to max; jitter j spreads it evenly over [1-j, 1+j].
CREATE FUNCTION docsched_retry_delay(q queues, retry_count int) RETURNS bigint LANGUAGE sql VOLATILE
  RETURN (CASE q.retry_strategy
      WHEN 'immediate' THEN 0
      WHEN 'fixed' THEN q.retry_base_ms
      ELSE least(q.retry_max_ms, q.retry_base_ms * 2 ^ least(retry_count, 40))
    END * (1 + q.retry_jitter * (2 * random() - 1)))::bigint;

-- Higher first. For each named row that began or ceased to wait: of the two highest waiting versions of its task
-- and the row itself, the highest becomes claimable and takes the best place among them; the others become blocked.
-- Lower ones are blocked already, so the cost does not grow with their number.
--
-- Rows locked by others (being claimed, cancelled, ...) are passed over: they count as no longer waiting. So a
-- version may be left unblocked by mistake, never blocked by mistake: a row is blocked only together with setting
-- has_blocked on a higher one under the same lock, and whoever takes a row with has_blocked out of the line calls
-- this again. has_blocked is only ever set here, also for lower rows that others hold at this moment: too often costs
-- a needless call, too rarely would strand a version. The claim checks for a higher waiting version itself, so an
-- unblocked row is never claimed too early.
CREATE FUNCTION docsched_order_versions(p_queue text[], p_task_id bigint[], p_task_version bigint[])
RETURNS void LANGUAGE sql VOLATILE AS $$
  WITH changed AS (
    SELECT DISTINCT c.queue, c.task_id, c.task_version
    FROM unnest(p_queue, p_task_id, p_task_version) AS c (queue, task_id, task_version)
  ),
  top AS (
    SELECT DISTINCT t.queue, t.task_id, t.task_version
    FROM changed c
    CROSS JOIN LATERAL (
      (SELECT w.queue, w.task_id, w.task_version
       FROM task_scheduler_tasks w
       WHERE w.queue = c.queue AND w.task_id = c.task_id AND w.status = 0 AND w.hold <> 1
       ORDER BY w.task_version DESC
       LIMIT 2)
      UNION ALL
      SELECT c.queue, c.task_id, c.task_version
    ) t
  ),
  waiting AS MATERIALIZED (
    SELECT w.queue, w.task_id, w.task_version, w.level, w.place, w.hold, w.has_blocked
    FROM top
    JOIN task_scheduler_tasks w USING (queue, task_id, task_version)
    WHERE w.status = 0 AND w.hold <> 1
    ORDER BY w.queue, w.task_id, w.task_version
    FOR UPDATE OF w SKIP LOCKED
  ),
  ranked AS (
    SELECT w.queue, w.task_id, w.task_version,
           w.has_blocked OR count(*) OVER task > 1 OR EXISTS (
             SELECT 1
             FROM task_scheduler_tasks l
             WHERE l.queue = w.queue AND l.task_id = w.task_id AND l.task_version < w.task_version
               AND l.status = 0 AND l.hold = 2
           ) AS has_blocked,
           row_number() OVER versions = 1 AS is_head,
           first_value(w.level) OVER line AS best_level,
           first_value(w.place) OVER line AS best_place
    FROM waiting w
    WINDOW task AS (PARTITION BY w.queue, w.task_id),
           versions AS (PARTITION BY w.queue, w.task_id ORDER BY w.task_version DESC),
           line AS (PARTITION BY w.queue, w.task_id ORDER BY w.level, w.place)
  )
  UPDATE task_scheduler_tasks t
  SET hold = CASE WHEN r.is_head THEN 0 ELSE 2 END,
      level = CASE WHEN r.is_head THEN r.best_level ELSE t.level END,
      place = CASE WHEN r.is_head THEN r.best_place ELSE t.place END,
      has_blocked = CASE WHEN r.is_head THEN r.has_blocked ELSE t.has_blocked END
  FROM ranked r
  WHERE t.queue = r.queue AND t.task_id = r.task_id AND t.task_version = r.task_version
    AND (t.hold <> CASE WHEN r.is_head THEN 0 ELSE 2 END
      OR r.is_head AND (t.level, t.place, t.has_blocked) IS DISTINCT FROM (r.best_level, r.best_place, r.has_blocked))
$$;

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
CREATE FUNCTION docsched_submit(
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
