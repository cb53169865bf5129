-- Step (b) of the slot protocol: marks tasks Processing and opens their attempts, in one commit.
-- p_attempt_ids: slots held; at most as many tasks are claimed. p_retries: of these, the most that may be retries
-- (retry_count > 0).
-- p_level, p_start, p_retry_start, p_stride: the chooser's line; the j-th task of a level stands at start + j * stride, the
-- lowest are taken, so an empty level's turns go to the others by weight. p_retry_first: in a level new tasks and retries
-- take turns, and this says who begins. p_retry_turn: when set they take turns over all levels instead, and this says who
-- begins; each of them stands at its own start (retry_start for retries) + j * stride.
-- p_epoch: the limiter epoch the slots were taken in.
-- p_url, p_outstanding: the targets, and how many attempts each has open. A slot goes to the target that has the fewest,
-- the slots before it counted, among those that may take one.
-- p_from: of level 1 to 5, the first place of new tasks that is looked at (src/pusher/front.ts).
-- Answers at least one row: gate (open | fenced: another epoch is in force, or the queue was paused meanwhile | waiting),
-- wanted (how many the line offered), slots (how many the targets took), records (of the targets that may not take all),
-- and a claimed task a row, in the order of the line; attempt_id is null when there is none.
-- has_blocked: a lower version waits behind this one, and the caller orders the versions of the task anew.
--
-- FOR KEY SHARE on limiter_state: a rebuild of the limiter (FOR UPDATE) waits for claims in flight and fences later ones;
-- the proofs that the store is in force, plain updates of that row, go on beside claims.
-- `held`: targets that take a few pushes, from all instances together, are locked while this claim takes them; who finds
-- one locked passes it over. What was not claimed after all is not counted.
-- `offered` reads without locks, so that only what is taken is locked; a row another instance is claiming is skipped,
-- and the caller sees claimed < wanted.
-- LIMIT 512 (the most attempt_ids a call) inside each other LIMIT changes nothing but the planner's guess, which for a
-- LIMIT it cannot see is a tenth of the table, and ends in a sequential scan or JIT. Rows are locked only as they are
-- pulled through the outer LIMIT.
-- (SELECT true ..) IS NULL: never an older version while a newer one waits; `hold` only keeps the blocked ones out of the
-- index. As NOT EXISTS it would be a join, which over a table that is still empty reads all of the queue.
-- Planned once a connection, for any values (the SET clauses): planning it at each call cost a third of its time. So the
-- plan must be right however small the tables were when it was made: no scan from end to end; no merge of a whole index;
-- tables are reached from the arrays by their keys, never by the queue alone.
CREATE OR REPLACE FUNCTION docsched_claim(
  p_queue text, p_attempt_ids text[], p_retries int, p_level int[], p_start float8[], p_retry_start float8[],
  p_stride float8[], p_retry_first boolean[], p_retry_turn boolean, p_epoch text, p_url text[], p_outstanding int[],
  p_from bigint[])
RETURNS TABLE (
  gate text, slots int, wanted int, records jsonb, attempt_id text, task_id bigint, task_version bigint,
  priority smallint, level smallint, attempt int, deadline bigint, payload text, traceparent text, create_at bigint,
  pending_since bigint, started_at bigint, has_blocked boolean, place bigint, retry boolean, url text)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH gate AS (
    SELECT q.processing_expired_ms, q.processing_max_ms
    FROM limiter_state s
    JOIN queues q ON q.queue = p_queue AND NOT q.paused
    WHERE s.epoch = p_epoch
    FOR KEY SHARE OF s
  ),
  asked AS MATERIALIZED (
    SELECT a.url, a.outstanding, a.n, look.now, g.failures, g.failed_at, g.error,
           g.not_before,
           CASE WHEN g.url IS NOT NULL THEN docsched_target_room(g, look.now) END AS room
    FROM gate
    CROSS JOIN (SELECT docsched_now() AS now OFFSET 0) look
    CROSS JOIN unnest(p_url, p_outstanding) WITH ORDINALITY AS a (url, outstanding, n)
    LEFT JOIN targets g ON g.url = a.url
  ),
  held AS MATERIALIZED (
    SELECT g.url, docsched_target_room(g, a.now) AS room
    FROM asked a
    JOIN targets g ON g.url = a.url
    WHERE a.room > 0 AND docsched_target_room(g, a.now) > 0
    FOR UPDATE OF g SKIP LOCKED
  ),
  taken AS (
    SELECT array_agg(h.url ORDER BY h.height, h.n) AS urls
    FROM (
      SELECT a.url, a.n, a.outstanding + height.k AS height
      FROM asked a
      LEFT JOIN held ON held.url = a.url
      CROSS JOIN LATERAL generate_series(1, CASE
        WHEN a.room IS NULL THEN cardinality(p_attempt_ids)
        ELSE least(coalesce(held.room, 0), cardinality(p_attempt_ids))
      END) AS height (k)
      ORDER BY height, a.n
      LIMIT cardinality(p_attempt_ids)
    ) h
  ),
  room AS MATERIALIZED (
    SELECT gate.processing_expired_ms, gate.processing_max_ms, coalesce(cardinality(taken.urls), 0) AS slots, taken.urls
    FROM gate
    CROSS JOIN taken
  ),
  offered AS (
    SELECT l.level, CASE WHEN lane.retry THEN l.retry_start ELSE l.start END AS start, l.stride, l.retry_first, lane.retry,
           row_number() OVER (PARTITION BY l.level, lane.retry) AS k
    FROM room
    CROSS JOIN unnest(p_level, p_start, p_retry_start, p_stride, p_retry_first)
      AS l (level, start, retry_start, stride, retry_first)
    CROSS JOIN (VALUES (false), (true)) AS lane (retry)
    CROSS JOIN LATERAL (
      SELECT 1
      FROM (
        SELECT 1
        FROM task_scheduler_tasks t
        WHERE t.queue = p_queue AND t.level = l.level AND (t.retry_count > 0) = lane.retry AND t.status = 0 AND t.hold = 0
          AND t.place >= CASE WHEN lane.retry THEN 0 ELSE p_from[l.level] END
        ORDER BY t.place
        LIMIT 512
      ) t
      LIMIT CASE WHEN lane.retry THEN least(room.slots, p_retries) ELSE room.slots END
    ) t
  ),
  placed AS (
    SELECT o.level, o.retry, o.k,
           o.start + o.stride * CASE WHEN p_retry_turn IS NULL
             THEN row_number() OVER (PARTITION BY o.level ORDER BY o.k, o.retry <> o.retry_first) ELSE o.k END AS position
    FROM (
      SELECT *, row_number() OVER (PARTITION BY retry ORDER BY start + k * stride, level) AS rank
      FROM offered
    ) o
    WHERE NOT o.retry OR o.rank <= p_retries
  ),
  line AS MATERIALIZED (
    SELECT l.level, l.retry, l.k, row_number() OVER (ORDER BY l.lap, l.position, l.level)::int AS turn
    FROM (
      SELECT *
      FROM (
        SELECT p.level, p.retry, p.k, p.position, CASE WHEN p_retry_turn IS NOT NULL THEN
          2 * row_number() OVER (PARTITION BY p.retry ORDER BY p.position, p.level) - (p.retry = p_retry_turn)::int
        END AS lap
        FROM placed p
        ORDER BY lap, p.position, p.level
        LIMIT (SELECT slots FROM room)
      ) l
      LIMIT 512
    ) l
  ),
  quota AS (
    SELECT level, retry, count(*) AS tasks, array_agg(turn ORDER BY k) AS turns FROM line GROUP BY level, retry
  ),
  picked AS MATERIALIZED (
    SELECT t.queue, t.task_id, t.task_version, t.id, t.attempt, t.has_blocked, t.place, quota.level, quota.retry, quota.turns
    FROM quota
    CROSS JOIN LATERAL (
      SELECT t.queue, t.task_id, t.task_version, t.id, t.attempt, t.has_blocked, t.place
      FROM (
        SELECT t.queue, t.task_id, t.task_version, t.id, t.attempt, t.has_blocked, t.place
        FROM task_scheduler_tasks t
        WHERE t.queue = p_queue AND t.level = quota.level AND (t.retry_count > 0) = quota.retry AND t.status = 0 AND t.hold = 0
          AND t.place >= CASE WHEN quota.retry THEN 0 ELSE p_from[quota.level] END
          AND (
            SELECT true
            FROM task_scheduler_tasks h
            WHERE h.queue = p_queue AND h.task_id = t.task_id AND h.task_version > t.task_version
              AND h.status = 0 AND h.hold <> 1
            LIMIT 1
          ) IS NULL
        ORDER BY t.place
        LIMIT 512
        FOR UPDATE OF t SKIP LOCKED
      ) t
      LIMIT quota.tasks
    ) t
  ),
  numbered AS MATERIALIZED (
    SELECT p.queue, p.task_id, p.task_version, p.id, p.place, p.has_blocked, p.retry, p.attempt + 1 AS number, p.turn, room.urls[p.turn] AS url,
           p_attempt_ids[p.turn] AS attempt_id
    FROM (
      SELECT *, turns[row_number() OVER (PARTITION BY level, retry ORDER BY place)] AS turn
      FROM (SELECT * FROM picked LIMIT 512) p
    ) p
    CROSS JOIN room
  ),
  counted AS (
    UPDATE targets g
    SET not_before = CASE WHEN g.failures > 0 THEN docsched_now() + docsched_left_alone_ms(g.failures + 1)
          ELSE g.not_before END,
        ramp_claimed = g.ramp_claimed + used.tasks
    FROM (SELECT n.url, count(*)::int AS tasks FROM numbered n JOIN held ON held.url = n.url GROUP BY n.url) used
    WHERE g.url = used.url
    RETURNING g.url, g.not_before
  ),
  clock AS MATERIALIZED (SELECT docsched_now() AS now),
  opened AS (
    INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, retry, claimed_at, deadline,
      max_deadline)
    SELECT n.attempt_id, n.id, p_queue, n.task_id, n.task_version, n.number, n.url, n.retry, clock.now,
           clock.now + room.processing_expired_ms,
           clock.now + greatest(room.processing_max_ms, room.processing_expired_ms)
    FROM numbered n
    CROSS JOIN clock
    CROSS JOIN room
  ),
  claimed AS (
    UPDATE task_scheduler_tasks t
    SET status = 1, attempt = n.number, attempt_id = n.attempt_id, started_at = clock.now,
        deadline = clock.now + room.processing_expired_ms, has_blocked = false, next_retry_time = NULL,
        update_at = greatest(clock.now, t.update_at + 1)
    FROM numbered n
    CROSS JOIN clock
    CROSS JOIN room
    WHERE t.queue = n.queue AND t.task_id = n.task_id AND t.task_version = n.task_version AND t.status = 0
    RETURNING n.turn, t.attempt_id, t.task_id, t.task_version, t.priority, t.level, t.attempt, t.deadline, t.payload,
              t.traceparent, t.create_at, t.pending_since, t.started_at, n.has_blocked, n.place, n.retry,
              n.url
  )
  SELECT CASE WHEN room.slots IS NULL THEN 'fenced' WHEN room.slots = 0 THEN 'waiting' ELSE 'open' END AS gate,
         coalesce(room.slots, 0) AS slots, (SELECT count(*)::int FROM line) AS wanted,
         (SELECT coalesce(jsonb_agg(jsonb_build_object('url', a.url, 'failures', a.failures, 'failed_at', a.failed_at,
                   'error', a.error, 'wait_ms', greatest(0, coalesce(counted.not_before, a.not_before) - a.now))), '[]')
          FROM asked a
          LEFT JOIN counted ON counted.url = a.url
          WHERE a.room IS NOT NULL) AS records,
         c.attempt_id, c.task_id, c.task_version, c.priority, c.level, c.attempt, c.deadline, c.payload, c.traceparent,
         c.create_at, c.pending_since, c.started_at, c.has_blocked, c.place, c.retry, c.url
  FROM (SELECT 1) one
  LEFT JOIN room ON true
  LEFT JOIN claimed c ON true
  ORDER BY c.turn;
END
$$;
