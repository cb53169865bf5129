-- Adds what finished transactions noted in task_count_deltas to task_counts, about 10,000 notes at a time, and deletes
-- them. Returns folded, their number.
-- Up to pg_snapshot_xmin every transaction has ended, and no note can come any more. The mark's lock lets one run at a
-- time; without it two would still count each note once, because each is deleted once.
-- (SELECT ...): read once, so that it can bound the index scan.
WITH mark AS MATERIALIZED (
  SELECT CASE WHEN m.folded_to <= s.xmin THEN m.folded_to ELSE '0' END AS folded_to, s.xmin AS ended
  FROM task_count_mark m
  CROSS JOIN (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xmin) s
  FOR UPDATE OF m
),
bound AS MATERIALIZED (
  SELECT mark.folded_to, coalesce((
           SELECT d.xid
           FROM task_count_deltas d
           WHERE d.xid < (SELECT ended FROM mark) AND d.xid > (
             SELECT f.xid FROM task_count_deltas f WHERE f.xid >= (SELECT folded_to FROM mark) ORDER BY f.xid LIMIT 1)
           ORDER BY d.xid
           OFFSET 10000
           LIMIT 1), mark.ended) AS fold_to
  FROM mark
),
gone AS (
  DELETE FROM task_count_deltas d
  WHERE d.xid >= (SELECT folded_to FROM bound) AND d.xid < (SELECT fold_to FROM bound)
  RETURNING d.queue, d.status, d.hold, d.tasks, d.timed, d.time_ms
),
added AS (
  INSERT INTO task_counts AS c (queue, status, hold, tasks, timed, time_ms)
  SELECT g.queue, g.status, g.hold, sum(g.tasks), sum(g.timed), sum(g.time_ms)
  FROM gone g
  GROUP BY g.queue, g.status, g.hold
  ON CONFLICT (queue, status, hold) DO UPDATE
  SET tasks = c.tasks + excluded.tasks, timed = c.timed + excluded.timed, time_ms = c.time_ms + excluded.time_ms
),
moved AS (
  UPDATE task_count_mark m SET folded_to = bound.fold_to FROM bound WHERE EXISTS (SELECT 1 FROM gone)
)
SELECT count(*)::int AS folded FROM gone
