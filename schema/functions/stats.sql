-- How many tasks of each queue, state and hold there are: exact at any moment, and read in milliseconds at any size.
--
-- Triggers note by how much each statement changed the counts, in its own transaction: a rollback or crash takes back
-- both. They only insert, so nobody waits for anybody. The job fold_counts adds the notes of finished transactions to
-- task_counts and deletes them, in one statement; readers add task_counts and the notes that are left. When no job runs,
-- the notes grow in number and reading gets slower; it stays exact.
--
-- Not seen are only changes made while triggers are off (session_replication_role = replica, a data-only restore):
-- after those, SELECT docsched_recount_tasks().

-- The time of a task that task_stats averages: since when it is Pending (once due) or Processing; else how long it took
-- from its last claim to its end. Null where there is none: never claimed, or ended by retention. After a change here
-- the sums have to be counted anew.
CREATE OR REPLACE FUNCTION docsched_counted_ms(
  status int, hold smallint, pending_since bigint, started_at bigint, finished_at bigint, reason text)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN status = 0 THEN CASE WHEN hold <> 1 THEN pending_since END
    WHEN status = 1 THEN started_at
    WHEN reason IS DISTINCT FROM 'retention' THEN finished_at - started_at
  END
$$;

CREATE OR REPLACE FUNCTION docsched_note_counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO task_count_deltas (queue, status, hold, tasks, timed, time_ms)
    SELECT c.queue, c.status, c.hold, count(*), count(c.ms), coalesce(sum(c.ms), 0)
    FROM (
      SELECT t.queue, t.status, t.hold,
             docsched_counted_ms(t.status, t.hold, t.pending_since, t.started_at, t.finished_at, t.reason) AS ms
      FROM new_rows t
    ) c
    GROUP BY c.queue, c.status, c.hold;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO task_count_deltas (queue, status, hold, tasks, timed, time_ms)
    SELECT c.queue, c.status, c.hold, -count(*), -count(c.ms), -coalesce(sum(c.ms), 0)
    FROM (
      SELECT t.queue, t.status, t.hold,
             docsched_counted_ms(t.status, t.hold, t.pending_since, t.started_at, t.finished_at, t.reason) AS ms
      FROM old_rows t
    ) c
    GROUP BY c.queue, c.status, c.hold;
  ELSE
    INSERT INTO task_count_deltas (queue, status, hold, tasks, timed, time_ms)
    SELECT d.queue, d.status, d.hold, d.tasks, d.timed, d.time_ms
    FROM (
      SELECT c.queue, c.status, c.hold, sum(c.n) AS tasks, coalesce(sum(c.n) FILTER (WHERE c.ms IS NOT NULL), 0) AS timed,
             coalesce(sum(c.n * c.ms), 0) AS time_ms
      FROM (
        SELECT t.queue, t.status, t.hold, -1 AS n,
               docsched_counted_ms(t.status, t.hold, t.pending_since, t.started_at, t.finished_at, t.reason) AS ms
        FROM old_rows t
        UNION ALL
        SELECT t.queue, t.status, t.hold, 1,
               docsched_counted_ms(t.status, t.hold, t.pending_since, t.started_at, t.finished_at, t.reason)
        FROM new_rows t
      ) c
      GROUP BY c.queue, c.status, c.hold
    ) d
    WHERE (d.tasks, d.timed, d.time_ms) <> (0, 0, 0);
  END IF;
  RETURN NULL;
END
$$;

-- Counts all tasks anew. Submits, claims and callbacks wait while it does.
CREATE OR REPLACE FUNCTION docsched_recount_tasks() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  -- Whoever wrote before has committed, and nobody writes until this has.
  LOCK TABLE task_scheduler_tasks IN SHARE MODE;
  INSERT INTO task_count_mark AS m (folded_to) VALUES ('0')
  ON CONFLICT (only_row) DO UPDATE SET folded_to = m.folded_to;
  DELETE FROM task_count_deltas;
  DELETE FROM task_counts;
  INSERT INTO task_counts (queue, status, hold, tasks, timed, time_ms)
  SELECT c.queue, c.status, c.hold, count(*), count(c.ms), coalesce(sum(c.ms), 0)
  FROM (
    SELECT t.queue, t.status, t.hold,
           docsched_counted_ms(t.status, t.hold, t.pending_since, t.started_at, t.finished_at, t.reason) AS ms
    FROM task_scheduler_tasks t
  ) c
  GROUP BY c.queue, c.status, c.hold;
END
$$;

CREATE OR REPLACE FUNCTION docsched_note_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM docsched_recount_tasks();
  RETURN NULL;
END
$$;

-- Once: a trigger is created under a lock that waits for every transaction that has written tasks, and holds up others
-- meanwhile. What was stored before is counted under the same lock.
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM task_count_mark) THEN RETURN; END IF;
  CREATE TRIGGER tasks_counted_insert AFTER INSERT ON task_scheduler_tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION docsched_note_counts();
  CREATE TRIGGER tasks_counted_update AFTER UPDATE ON task_scheduler_tasks
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION docsched_note_counts();
  CREATE TRIGGER tasks_counted_delete AFTER DELETE ON task_scheduler_tasks
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION docsched_note_counts();
  CREATE TRIGGER tasks_counted_truncate AFTER TRUNCATE ON task_scheduler_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION docsched_note_truncate();
  PERFORM docsched_recount_tasks();
END
$$;

-- The counts as of the reader's snapshot. A mark ahead of every running transaction comes from a dump of another
-- server, and says nothing here.
CREATE OR REPLACE VIEW task_counts_now AS
SELECT c.queue, c.status, c.hold, sum(c.tasks)::bigint AS tasks, sum(c.timed)::bigint AS timed, sum(c.time_ms) AS time_ms
FROM (
  SELECT k.queue, k.status, k.hold, k.tasks, k.timed, k.time_ms
  FROM task_counts k
  UNION ALL
  SELECT d.queue, d.status, d.hold, d.tasks, d.timed, d.time_ms
  FROM task_count_deltas d
  WHERE d.xid >= (
    SELECT CASE WHEN m.folded_to <= pg_snapshot_xmin(pg_current_snapshot()) THEN m.folded_to ELSE '0' END
    FROM task_count_mark m)
) c
GROUP BY c.queue, c.status, c.hold;

-- For people: each queue and state. tasks: how many. oldest_age_ms: of the task that is longest in that state (Pending:
-- since it fell due). avg_duration_ms: how long Pending tasks have been due and Processing ones been worked on, on
-- average; how long finished ones took from claim to end.
-- The oldest finished one is looked for reason by reason, as tasks_finished stands; COLLATE: or the reasons would have the
-- collation of q.queue, which is not that of the index. OFFSET 0: each open attempt's task is looked up by its key. A task
-- that the attempt does not name any more was cancelled.
CREATE OR REPLACE VIEW task_stats AS
SELECT q.queue, s.status, coalesce(c.tasks, 0) AS tasks,
       CASE WHEN c.tasks > 0 THEN greatest(0, clock.now - CASE
         WHEN s.number = 0 THEN (
           SELECT t.pending_since
           FROM task_scheduler_tasks t
           WHERE t.queue = q.queue AND t.finished_at IS NULL AND t.deadline IS NULL
           ORDER BY t.pending_since
           LIMIT 1)
         WHEN s.number = 1 THEN p.oldest
         WHEN s.number = 2 THEN (
           SELECT t.finished_at
           FROM task_scheduler_tasks t
           WHERE t.queue = q.queue AND t.status = 2
           ORDER BY t.reason, t.finished_at
           LIMIT 1)
         ELSE (
           SELECT min((
             SELECT t.finished_at
             FROM task_scheduler_tasks t
             WHERE t.queue = q.queue AND t.status = s.number AND t.status >= 2 AND t.reason = r.reason COLLATE "default"
             ORDER BY t.finished_at
             LIMIT 1))
           FROM docsched_reasons(q.queue, s.number) AS r (reason))
       END) END AS oldest_age_ms,
       CASE WHEN c.timed > 0 THEN round(
         CASE WHEN s.number <= 1 THEN greatest(0, clock.now - c.time_ms / c.timed) ELSE c.time_ms / c.timed END)::bigint
       END AS avg_duration_ms
FROM queues q
CROSS JOIN (VALUES (0, 'Pending'), (1, 'Processing'), (2, 'Success'), (3, 'Failed'), (4, 'Stopped')) AS s (number, status)
CROSS JOIN (SELECT docsched_now() AS now OFFSET 0) clock
LEFT JOIN (
  SELECT n.queue, n.status, sum(n.tasks)::bigint AS tasks, sum(n.timed) AS timed, sum(n.time_ms) AS time_ms
  FROM task_counts_now n
  GROUP BY n.queue, n.status
) c ON c.queue = q.queue AND c.status = s.number
LEFT JOIN (
  SELECT a.queue, min(a.claimed_at) AS oldest
  FROM attempts a
  CROSS JOIN LATERAL (
    SELECT 1
    FROM task_scheduler_tasks t
    WHERE t.queue = a.queue AND t.task_id = a.task_id AND t.task_version = a.task_version
      AND t.attempt_id = a.attempt_id
    OFFSET 0
  ) t
  WHERE a.closed_at IS NULL
  GROUP BY a.queue
) p ON p.queue = q.queue AND s.number = 1
ORDER BY q.queue, s.number;
