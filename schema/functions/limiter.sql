-- The PostgreSQL limiter: what schema/scripts/limiter_*.lua are for Redis.
--
-- The functions below are plpgsql because each of its statements sees what was committed before it: what is read after
-- the queue's row is locked is the truth. (One statement has one snapshot, older than the lock it waits for.)
--
-- Under a global limit (p_global > 0) acquires and confirmations of all queues come one after another, each until its
-- commit: what lifts the total is seen by the next, and what it does not see yet (a release under way) only lowers it.
-- Order of locks: the advisory one, then the queue's row; a rebuild: the store's row, then all queues' rows. Releases
-- and rebuilds never ask for the advisory one, and whoever holds a queue's row waits for nobody, so there is no
-- deadlock, and a release waits for one caller of its own queue at most.

-- Locks the queue's row and answers it; null when the rows are of another epoch. A rebuild deletes the row, so it waits
-- for its holder; whoever comes after it sees the new epoch.
CREATE OR REPLACE FUNCTION docsched_limiter_lock(p_epoch text, p_queue text, p_global int)
RETURNS limiter_usage LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_usage limiter_usage;
BEGIN
  IF p_global > 0 THEN PERFORM pg_advisory_xact_lock(7220371846); END IF;
  LOOP
    SELECT u.queue, u.in_use, u.retries, u.wanted, u.wanted_until
    INTO v_usage.queue, v_usage.in_use, v_usage.retries, v_usage.wanted, v_usage.wanted_until
    FROM limiter_usage u
    WHERE u.queue = p_queue
    FOR UPDATE;
    IF FOUND THEN
      PERFORM 1 FROM limiter_store s WHERE s.epoch = p_epoch;
      RETURN CASE WHEN FOUND THEN v_usage END;
    END IF;
    PERFORM 1 FROM limiter_store s WHERE s.epoch = p_epoch FOR KEY SHARE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    INSERT INTO limiter_usage (queue, in_use) VALUES (p_queue, 0) ON CONFLICT (queue) DO NOTHING;
  END LOOP;
END
$$;

-- Takes slots while in_use is below the limit, and under a global limit while the total is below it and the slot is
-- either within the queue's guaranteed part or not owed to others. Of the slots taken as many hold a mark as the share
-- of the retries allows. Coming short under a global limit leaves a want. Returns the granted ids, those already held
-- among them, and how many hold a mark; no row: lost.
CREATE OR REPLACE FUNCTION docsched_limiter_acquire(
  p_epoch text, p_queue text, p_ids text[], p_limit int, p_retries int, p_global int, p_guaranteed int,
  p_want_ttl_ms bigint)
RETURNS TABLE (granted text[], retries int) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_usage limiter_usage := docsched_limiter_lock(p_epoch, p_queue, p_global);
  v_held text[];
  v_held_marks int;
  v_asked text[];
  v_taken text[];
  v_marks int;
  v_free int;
  v_room int;
  v_owed int;
  v_short boolean;
BEGIN
  IF v_usage.queue IS NULL THEN RETURN; END IF;
  SELECT coalesce(array_agg(s.attempt_id), '{}'), count(*) FILTER (WHERE s.retry) INTO v_held, v_held_marks
  FROM limiter_slots s WHERE s.attempt_id = ANY (p_ids);
  v_asked := CASE WHEN v_held = '{}' THEN p_ids
    ELSE ARRAY(SELECT i.id FROM unnest(p_ids) WITH ORDINALITY AS i (id, n) WHERE i.id <> ALL (v_held) ORDER BY i.n) END;

  v_free := p_limit - v_usage.in_use;
  IF p_global > 0 THEN
    SELECT p_global - sum(u.in_use),
           coalesce(sum(greatest(0, u.wanted - u.in_use))
             FILTER (WHERE u.queue <> p_queue AND u.wanted_until > docsched_now()), 0)
    INTO v_room, v_owed
    FROM limiter_usage u;
    v_free := least(v_free, greatest(v_room - v_owed, least(v_room, p_guaranteed - v_usage.in_use)));
  END IF;
  v_taken := v_asked[1 : greatest(0, v_free)];
  v_marks := greatest(0, least(p_retries - v_usage.retries, cardinality(v_taken)));
  v_short := p_global > 0 AND cardinality(v_taken) < cardinality(v_asked);

  IF v_taken <> '{}' THEN
    INSERT INTO limiter_slots (attempt_id, queue, touched_at, retry)
    SELECT t.id, p_queue, docsched_now(), t.n <= v_marks FROM unnest(v_taken) WITH ORDINALITY AS t (id, n);
  END IF;
  IF v_taken <> '{}' OR v_short THEN
    UPDATE limiter_usage u
    SET in_use = u.in_use + cardinality(v_taken),
        retries = u.retries + v_marks,
        wanted = CASE WHEN v_short THEN least(p_guaranteed, p_limit, u.in_use + cardinality(v_asked)) ELSE u.wanted END,
        wanted_until = CASE WHEN v_short THEN docsched_now() + p_want_ttl_ms ELSE u.wanted_until END
    WHERE u.queue = p_queue;
  END IF;
  granted := CASE WHEN v_held = '{}' THEN v_taken
    ELSE ARRAY(
      SELECT i.id FROM unnest(p_ids) WITH ORDINALITY AS i (id, n) WHERE i.id = ANY (v_held || v_taken) ORDER BY i.n) END;
  retries := v_held_marks + v_marks;
  RETURN NEXT;
END
$$;

-- Gives slots back, and with them their marks; ids that hold none are passed over. Returns how many were given back;
-- null: lost.
CREATE OR REPLACE FUNCTION docsched_limiter_release(p_epoch text, p_queue text, p_ids text[])
RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_usage limiter_usage := docsched_limiter_lock(p_epoch, p_queue, 0);
  v_slots int;
  v_marks int;
BEGIN
  IF v_usage.queue IS NULL THEN RETURN NULL; END IF;
  WITH given AS (
    DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (p_ids) AND s.queue = p_queue RETURNING s.retry
  )
  SELECT count(*), count(*) FILTER (WHERE g.retry) INTO v_slots, v_marks FROM given g;
  UPDATE limiter_usage u
  SET in_use = u.in_use - v_slots, retries = u.retries - v_marks
  WHERE u.queue = p_queue AND v_slots > 0;
  RETURN v_slots;
END
$$;

-- Which of the claimed ids get no room: below the limit, below the global limit (0: none), and for a retry below the
-- retries' share. They come one after another, retries first; each one's own slot does not count against it, those of
-- the ones still to come do: who holds a slot does not lose it to one that holds none. Marks: those of other batches.
CREATE OR REPLACE FUNCTION docsched_limiter_refuse(
  p_retry_ids text[], p_fresh_ids text[], p_held text[], p_in_use int, p_marks int, p_total int,
  p_limit int, p_retries int, p_global int)
RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_id text;
  v_own int;
  v_is_retry boolean;
  v_lost text[] := '{}';
BEGIN
  FOREACH v_id IN ARRAY p_retry_ids || p_fresh_ids LOOP
    v_own := (v_id = ANY (p_held))::int;
    v_is_retry := v_id = ANY (p_retry_ids);
    IF p_in_use - v_own < p_limit AND (p_global = 0 OR p_total - v_own < p_global)
      AND (NOT v_is_retry OR p_marks < p_retries) THEN
      p_in_use := p_in_use - v_own + 1;
      p_total := p_total - v_own + 1;
      p_marks := p_marks + v_is_retry::int;
    ELSE
      p_in_use := p_in_use - v_own;
      p_total := p_total - v_own;
      v_lost := v_lost || v_id;
    END IF;
  END LOOP;
  RETURN v_lost;
END
$$;

-- After the claim commit. Unused ids are released; they also say that the queue has no use for more, so it wants nothing
-- any more. A claimed id keeps its slot, or takes a free one, when there is room for it (docsched_limiter_refuse), and
-- holds a mark exactly when it is a retry. Kept slots are touched, so that a reconciliation under way cannot drop them.
-- Returns the lost ids, which hold no slot now; null: lost.
CREATE OR REPLACE FUNCTION docsched_limiter_confirm(
  p_epoch text, p_queue text, p_retry_ids text[], p_fresh_ids text[], p_unused text[], p_limit int, p_retries int,
  p_global int)
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_usage limiter_usage := docsched_limiter_lock(p_epoch, p_queue, p_global);
  v_kept text[] := p_retry_ids || p_fresh_ids;
  v_marked int := cardinality(p_retry_ids);
  v_lost text[] := '{}';
  v_in_use int := v_usage.in_use;
  v_marks int := v_usage.retries;
  v_total int := 0;
  v_held text[];
  v_slots int;
  v_held_marks int;
BEGIN
  IF v_usage.queue IS NULL THEN RETURN NULL; END IF;
  IF p_unused <> '{}' THEN
    WITH given AS (
      DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (p_unused) AND s.queue = p_queue RETURNING s.retry
    )
    SELECT count(*), count(*) FILTER (WHERE g.retry) INTO v_slots, v_held_marks FROM given g;
    v_in_use := v_in_use - v_slots;
    v_marks := v_marks - v_held_marks;
  END IF;
  SELECT coalesce(array_agg(s.attempt_id), '{}'), count(*) FILTER (WHERE s.retry) INTO v_held, v_held_marks
  FROM limiter_slots s WHERE s.attempt_id = ANY (v_kept);
  v_marks := v_marks - v_held_marks;
  IF p_global > 0 THEN
    SELECT v_in_use + coalesce(sum(u.in_use), 0) INTO v_total FROM limiter_usage u WHERE u.queue <> p_queue;
  END IF;

  IF cardinality(v_held) < cardinality(v_kept) OR v_in_use > p_limit OR v_total > p_global
    OR (v_marked > 0 AND v_marks + v_marked > p_retries) THEN
    v_lost := docsched_limiter_refuse(
      p_retry_ids, p_fresh_ids, v_held, v_in_use, v_marks, v_total, p_limit, p_retries, p_global);
    v_kept := ARRAY(SELECT c.id FROM unnest(v_kept) AS c (id) WHERE c.id <> ALL (v_lost));
    v_marked := (SELECT count(*) FROM unnest(p_retry_ids) AS c (id) WHERE c.id <> ALL (v_lost));
    DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (v_lost);
    INSERT INTO limiter_slots (attempt_id, queue, touched_at)
    SELECT c.id, p_queue, 0 FROM unnest(v_kept) AS c (id) WHERE c.id <> ALL (v_held);
    v_in_use := v_in_use - cardinality(v_held) + cardinality(v_kept);
  END IF;
  UPDATE limiter_slots s
  SET touched_at = docsched_now(), retry = s.attempt_id = ANY (p_retry_ids)
  WHERE s.attempt_id = ANY (v_kept);
  UPDATE limiter_usage u
  SET in_use = v_in_use, retries = v_marks + v_marked,
      wanted = CASE WHEN p_unused = '{}' OR p_global = 0 THEN u.wanted ELSE 0 END
  WHERE u.queue = p_queue AND (u.in_use <> v_in_use OR u.retries <> v_marks + v_marked OR p_unused <> '{}');
  RETURN v_lost;
END
$$;

-- Applies what a reconciliation planned. The plan may be old by now: a slot touched after the cut-off was confirmed
-- meanwhile and stays, and one that is there by now is not added again. Slots of the ids named hold a mark exactly when
-- they are among p_retry_ids. Returns no row: lost.
CREATE OR REPLACE FUNCTION docsched_limiter_repair(
  p_epoch text, p_queue text, p_cutoff bigint, p_drop text[], p_retry_ids text[], p_fresh_ids text[])
RETURNS TABLE (dropped int, added text[]) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_usage limiter_usage := docsched_limiter_lock(p_epoch, p_queue, 0);
BEGIN
  IF v_usage.queue IS NULL THEN RETURN; END IF;
  DELETE FROM limiter_slots s WHERE s.attempt_id = ANY (p_drop) AND s.queue = p_queue AND s.touched_at <= p_cutoff;
  GET DIAGNOSTICS dropped = ROW_COUNT;
  UPDATE limiter_slots s
  SET retry = s.attempt_id = ANY (p_retry_ids)
  WHERE s.attempt_id = ANY (p_retry_ids || p_fresh_ids);
  WITH inserted AS (
    INSERT INTO limiter_slots AS s (attempt_id, queue, touched_at, retry)
    SELECT a.id, p_queue, docsched_now(), a.id = ANY (p_retry_ids) FROM unnest(p_retry_ids || p_fresh_ids) AS a (id)
    ON CONFLICT (attempt_id) DO NOTHING
    RETURNING s.attempt_id
  )
  SELECT coalesce(array_agg(i.attempt_id), '{}') INTO added FROM inserted i;
  UPDATE limiter_usage u
  SET (in_use, retries) = (
    SELECT count(*), count(*) FILTER (WHERE s.retry) FROM limiter_slots s WHERE s.queue = p_queue)
  WHERE u.queue = p_queue;
  RETURN NEXT;
END
$$;

-- Replaces all slots by those of the open attempts (queue, id and retry in step) and opens a new epoch. False when the
-- store holds another epoch than observed (null: none): somebody else was first, nothing is changed.
CREATE OR REPLACE FUNCTION docsched_limiter_rebuild(
  p_observed text, p_epoch text, p_queues text[], p_ids text[], p_retry boolean[])
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
  INSERT INTO limiter_slots (attempt_id, queue, touched_at, retry)
  SELECT o.id, o.queue, docsched_now(), o.retry FROM unnest(p_queues, p_ids, p_retry) AS o (queue, id, retry);
  INSERT INTO limiter_usage (queue, in_use, retries)
  SELECT o.queue, count(*), count(*) FILTER (WHERE o.retry)
  FROM unnest(p_queues, p_retry) AS o (queue, retry)
  GROUP BY o.queue;
  RETURN true;
END
$$;
