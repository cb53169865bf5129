-- Step (b) of the slot protocol: marks tasks Processing and opens their attempts, in one commit.
-- $1 queue text  $2 attempt_ids text[]: slots held; at most as many tasks are claimed
-- $3 level int[]  $4 start float8[]  $5 stride float8[]: the chooser's line; the j-th task of a level stands at
--    start + j * stride, the lowest are taken, so an empty level's turns go to the others by weight
-- $6 epoch text: the limiter epoch the slots were taken in  $7 target text  $8 probe_ms bigint
-- Returns at least one row: gate (open | fenced | waiting), wait_ms (how long the target is left alone), its failures, wanted (how many the
-- line offered), and a claimed task a row, in the order of the line; attempt_id is null when there is none.
-- has_blocked: a lower version waits behind this one, and the caller orders the versions of the task anew.
--
-- FOR KEY SHARE on limiter_state: a rebuild of the limiter (FOR UPDATE) waits for claims in flight and fences later ones;
-- the proofs that the store is in force, plain updates of that row, go on beside claims.
-- A target with failures gets one probe each probe_ms from all instances together.
-- `offered` reads without locks, so that only what is taken is locked; a row another instance is claiming is skipped,
-- and the caller sees claimed < wanted.
-- LIMIT 512 (the most attempt_ids a call) inside each other LIMIT changes nothing but the planner's guess, which for a
-- LIMIT it cannot see is a tenth of the table, and ends in a sequential scan or JIT. Rows are locked only as they are
-- pulled through the outer LIMIT.
-- NOT EXISTS: never an older version while a newer one waits; `hold` only keeps the blocked ones out of the index.
WITH gate AS (
  SELECT q.processing_expired_ms, q.processing_max_ms
  FROM limiter_state s
  JOIN queues q ON q.queue = $1
  WHERE s.epoch = $6
  FOR KEY SHARE OF s
),
probe AS (
  UPDATE targets g
  SET not_before = docsched_now() + $8
  WHERE g.url = $7 AND g.failures > 0 AND g.not_before <= docsched_now() AND EXISTS (SELECT 1 FROM gate)
  RETURNING g.url
),
room AS (
  SELECT gate.processing_expired_ms, gate.processing_max_ms, g.not_before, g.failures,
         CASE
           WHEN g.url IS NULL OR g.failures = 0 AND g.not_before <= docsched_now() THEN cardinality($2::text[])
           WHEN EXISTS (SELECT 1 FROM probe) THEN least(1, cardinality($2::text[]))
           ELSE 0
         END AS slots
  FROM gate
  LEFT JOIN targets g ON g.url = $7
),
offered AS (
  SELECT l.level, l.start, l.stride, l.start + row_number() OVER (PARTITION BY l.level) * l.stride AS position
  FROM room
  CROSS JOIN unnest($3::int[], $4::float8[], $5::float8[]) AS l (level, start, stride)
  CROSS JOIN LATERAL (
    SELECT 1
    FROM (
      SELECT 1
      FROM task_scheduler_tasks t
      WHERE t.queue = $1 AND t.level = l.level AND t.status = 0 AND t.hold = 0
      ORDER BY t.place
      LIMIT 512
    ) t
    LIMIT room.slots
  ) t
),
quota AS (
  SELECT o.level, o.start, o.stride, count(*) AS tasks
  FROM (
    SELECT * FROM (SELECT * FROM offered ORDER BY position, level LIMIT (SELECT slots FROM room)) o LIMIT 512
  ) o
  GROUP BY o.level, o.start, o.stride
),
picked AS MATERIALIZED (
  SELECT t.task_id, t.task_version, t.id, t.attempt, t.has_blocked, t.level, t.place, quota.start, quota.stride
  FROM quota
  CROSS JOIN LATERAL (
    SELECT t.task_id, t.task_version, t.id, t.attempt, t.has_blocked, t.level, t.place
    FROM (
      SELECT t.task_id, t.task_version, t.id, t.attempt, t.has_blocked, t.level, t.place
      FROM task_scheduler_tasks t
      WHERE t.queue = $1 AND t.level = quota.level AND t.status = 0 AND t.hold = 0
        AND NOT EXISTS (
          SELECT 1
          FROM task_scheduler_tasks h
          WHERE h.queue = $1 AND h.task_id = t.task_id AND h.task_version > t.task_version
            AND h.status = 0 AND h.hold <> 1
        )
      ORDER BY t.place
      LIMIT 512
      FOR UPDATE OF t SKIP LOCKED
    ) t
    LIMIT quota.tasks
  ) t
),
numbered AS (
  SELECT p.task_id, p.task_version, p.id, p.has_blocked, p.attempt + 1 AS number,
         row_number() OVER (ORDER BY p.position, p.level)::int AS turn
  FROM (
    SELECT *, start + row_number() OVER (PARTITION BY level ORDER BY place) * stride AS position
    FROM (SELECT * FROM picked LIMIT 512) p
  ) p
),
clock AS MATERIALIZED (SELECT docsched_now() AS now),
opened AS (
  INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, claimed_at, deadline,
    max_deadline)
  SELECT ($2::text[])[n.turn], n.id, $1, n.task_id, n.task_version, n.number, $7, clock.now,
         clock.now + room.processing_expired_ms,
         clock.now + greatest(room.processing_max_ms, room.processing_expired_ms)
  FROM numbered n
  CROSS JOIN clock
  CROSS JOIN room
),
claimed AS (
  UPDATE task_scheduler_tasks t
  SET status = 1, attempt = n.number, attempt_id = ($2::text[])[n.turn], started_at = clock.now,
      deadline = clock.now + room.processing_expired_ms, has_blocked = false, next_retry_time = NULL,
      update_at = clock.now
  FROM numbered n
  CROSS JOIN clock
  CROSS JOIN room
  WHERE t.queue = $1 AND t.task_id = n.task_id AND t.task_version = n.task_version AND t.status = 0
  RETURNING n.turn, t.attempt_id, t.task_id, t.task_version, t.priority, t.level, t.attempt, t.deadline, t.payload,
            t.traceparent, t.create_at, t.pending_since, t.started_at, n.has_blocked
)
SELECT CASE WHEN room.slots IS NULL THEN 'fenced' WHEN room.slots = 0 THEN 'waiting' ELSE 'open' END AS gate,
       greatest(0, room.not_before - docsched_now())::int AS wait_ms, coalesce(room.failures, 0) AS failures, (SELECT coalesce(sum(tasks), 0)::int FROM quota) AS wanted,
       c.attempt_id, c.task_id, c.task_version, c.priority, c.level, c.attempt, c.deadline, c.payload, c.traceparent,
       c.create_at, c.pending_since, c.started_at, c.has_blocked
FROM (SELECT 1) one
LEFT JOIN room ON true
LEFT JOIN claimed c ON true
ORDER BY c.turn
