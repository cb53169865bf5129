-- Delayed tasks and due retries become claimable.
-- Returns the rows that were due: status 0 and hold 0 are claimable now; status 4 were stopped instead; hold 1 come
-- again. The caller then orders their versions; until then the claim's own check keeps an older version back.
-- (SELECT docsched_now()): read once, so that it can bound the index scan.
--
-- Queues of policy `stop`: all that is Pending again, for whatever reason, comes through here, and here it meets the
-- submits of higher versions, which write the floor under its lock. Floor locked by a submit: its version may be higher,
-- and the row is looked at again 500 ms later (moved, so that many such rows never keep others out of the LIMIT). Floor
-- higher: Stopped. Else the row becomes claimable under that lock, and a submit that comes after it finds it so.
-- No floor: no submit made the task, so none is in flight that this would have to meet.
WITH due AS MATERIALIZED (
  SELECT t.queue, t.task_id, t.task_version
  FROM task_scheduler_tasks t
  WHERE t.status = 0 AND t.hold = 1 AND t.ready_at <= (SELECT docsched_now())
  ORDER BY t.ready_at
  LIMIT 500
  FOR UPDATE SKIP LOCKED
),
floors AS MATERIALIZED (
  SELECT due.queue, due.task_id, due.task_version, f.task_version AS floor
  FROM due
  JOIN queues q ON q.queue = due.queue AND q.version_policy = 'stop'
  JOIN version_floors f ON f.queue = due.queue AND f.task_id = due.task_id
  FOR SHARE OF f SKIP LOCKED
),
decided AS MATERIALIZED (
  SELECT due.queue, due.task_id, due.task_version, f.floor, coalesce(f.floor > due.task_version, false) AS superseded,
         q.version_policy = 'stop' AND f.task_id IS NULL AND EXISTS (
           SELECT 1 FROM version_floors s WHERE s.queue = due.queue AND s.task_id = due.task_id) AS in_flight
  FROM due
  JOIN queues q ON q.queue = due.queue
  LEFT JOIN floors f ON f.queue = due.queue AND f.task_id = due.task_id AND f.task_version = due.task_version
)
UPDATE task_scheduler_tasks t
SET status = CASE WHEN d.superseded THEN 4 ELSE 0 END,
    hold = CASE WHEN d.in_flight THEN 1 ELSE 0 END,
    ready_at = CASE WHEN d.in_flight THEN clock.now + 500 END,
    next_retry_time = CASE WHEN NOT d.superseded THEN t.next_retry_time END,
    has_blocked = t.has_blocked AND NOT d.superseded,
    finished_at = CASE WHEN d.superseded THEN clock.now END,
    reason = CASE WHEN d.superseded THEN 'superseded' END,
    status_code = CASE WHEN NOT d.superseded THEN t.status_code END,
    status_msg = CASE WHEN d.superseded THEN 'version ' || d.floor || ' was accepted' ELSE t.status_msg END,
    update_at = greatest(clock.now, t.update_at + 1)
FROM decided d
CROSS JOIN (SELECT docsched_now() AS now) clock
WHERE t.queue = d.queue AND t.task_id = d.task_id AND t.task_version = d.task_version
RETURNING t.queue, t.task_id, t.task_version, t.status, t.hold
