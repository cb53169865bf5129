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
CREATE OR REPLACE FUNCTION docsched_order_versions(p_queue text[], p_task_id bigint[], p_task_version bigint[])
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
