-- The PostgreSQL limiter: what schema/scripts/limiter_*.lua are for Redis.
--
-- The functions below are plpgsql because each of its statements sees what was committed before it: what is read after
-- the queue's row is locked is the truth. (One statement has one snapshot, older than the lock it waits for.)
-- Whoever waits for a queue's row holds no other lock a rebuild needs, so there is no deadlock with it.

-- Locks the queue's row and answers its in_use; null when the rows are of another epoch. A rebuild deletes the row, so
-- it waits for its holder; whoever comes after it sees the new epoch.
CREATE OR REPLACE FUNCTION docsched_limiter_lock(p_epoch text, p_queue text) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
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
CREATE OR REPLACE FUNCTION docsched_limiter_acquire(p_epoch text, p_queue text, p_limit int, p_ids text[])
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
CREATE OR REPLACE FUNCTION docsched_limiter_release(p_epoch text, p_queue text, p_ids text[])
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
CREATE OR REPLACE FUNCTION docsched_limiter_confirm(
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
CREATE OR REPLACE FUNCTION docsched_limiter_repair(
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
CREATE OR REPLACE FUNCTION docsched_limiter_rebuild(p_observed text, p_epoch text, p_queues text[], p_ids text[])
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
