-- Higher first. For each named row that began or ceased to wait: of the highest waiting versions of its task and the row
-- itself, the highest becomes claimable and takes the best place among them; the others become blocked. Lower ones are
-- blocked already, so the cost does not grow with their number; nor with that of versions that are done: a version that
-- is not blocked is looked for among the task's highest 100 rows only.
--
-- Where the queue's version_policy is `stop`, a version below the floor is not blocked but Stopped, superseded; it leaves
-- its place to the highest all the same.
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
      (SELECT b.queue, b.task_id, b.task_version
       FROM task_scheduler_tasks b
       WHERE b.queue = c.queue AND b.task_id = c.task_id AND b.status = 0 AND b.hold = 2
       ORDER BY b.task_version DESC
       LIMIT 2)
      UNION ALL
      (SELECT r.queue, r.task_id, r.task_version
       FROM (
         SELECT r.queue, r.task_id, r.task_version, r.status, r.hold
         FROM task_scheduler_tasks r
         WHERE r.queue = c.queue AND r.task_id = c.task_id
         ORDER BY r.task_version DESC
         LIMIT 100
       ) r
       WHERE r.status = 0 AND r.hold = 0
       ORDER BY r.task_version DESC
       LIMIT 2)
      UNION ALL
      SELECT c.queue, c.task_id, c.task_version
    ) t
  ),
  waiting AS MATERIALIZED (
    SELECT w.queue, w.task_id, w.task_version, w.level, w.place, w.hold, w.has_blocked,
           CASE WHEN q.version_policy = 'stop' THEN (
             SELECT f.task_version
             FROM version_floors f
             WHERE f.queue = w.queue AND f.task_id = w.task_id AND f.task_version > w.task_version
           ) END AS superseded_by
    FROM top
    CROSS JOIN LATERAL (SELECT q.version_policy FROM queues q WHERE q.queue = top.queue LIMIT 1) q
    JOIN task_scheduler_tasks w USING (queue, task_id, task_version)
    WHERE w.status = 0 AND (w.hold <> 1 OR q.version_policy = 'stop')
    ORDER BY w.queue, w.task_id, w.task_version
    FOR UPDATE OF w SKIP LOCKED
  ),
  ranked AS (
    SELECT w.queue, w.task_id, w.task_version, w.superseded_by,
           w.has_blocked OR count(*) FILTER (WHERE w.superseded_by IS NULL) OVER task > 1 OR EXISTS (
             SELECT 1
             FROM task_scheduler_tasks l
             WHERE l.queue = w.queue AND l.task_id = w.task_id AND l.task_version < w.task_version
               AND l.status = 0 AND l.hold = 2
           ) AS has_blocked,
           w.superseded_by IS NULL AND row_number() OVER versions = 1 AS is_head,
           first_value(w.level) OVER line AS best_level,
           first_value(w.place) OVER line AS best_place
    FROM waiting w
    WHERE w.hold <> 1 OR w.superseded_by IS NOT NULL
    WINDOW task AS (PARTITION BY w.queue, w.task_id),
           versions AS (PARTITION BY w.queue, w.task_id ORDER BY w.task_version DESC),
           line AS (PARTITION BY w.queue, w.task_id ORDER BY w.hold = 1, w.level, w.place)
  )
  UPDATE task_scheduler_tasks t
  SET hold = CASE WHEN r.is_head OR r.superseded_by IS NOT NULL THEN 0 ELSE 2 END,
      level = CASE WHEN r.is_head THEN r.best_level ELSE t.level END,
      place = CASE WHEN r.is_head THEN r.best_place ELSE t.place END,
      has_blocked = CASE WHEN r.is_head THEN r.has_blocked ELSE r.superseded_by IS NULL AND t.has_blocked END,
      status = CASE WHEN r.superseded_by IS NULL THEN t.status ELSE 4 END,
      reason = CASE WHEN r.superseded_by IS NULL THEN t.reason ELSE 'superseded' END,
      status_msg = CASE WHEN r.superseded_by IS NULL THEN t.status_msg
        ELSE 'version ' || r.superseded_by || ' was accepted' END,
      status_code = CASE WHEN r.superseded_by IS NULL THEN t.status_code END,
      ready_at = CASE WHEN r.superseded_by IS NULL THEN t.ready_at END,
      next_retry_time = CASE WHEN r.superseded_by IS NULL THEN t.next_retry_time END,
      finished_at = CASE WHEN r.superseded_by IS NOT NULL THEN docsched_now() END,
      update_at = greatest(docsched_now(), t.update_at + 1)
  FROM ranked r
  WHERE t.queue = r.queue AND t.task_id = r.task_id AND t.task_version = r.task_version
    AND (r.superseded_by IS NOT NULL
      OR t.hold <> CASE WHEN r.is_head THEN 0 ELSE 2 END
      OR r.is_head AND (t.level, t.place, t.has_blocked) IS DISTINCT FROM (r.best_level, r.best_place, r.has_blocked))
$$;
