-- Tasks by queue, state and hold, for the gauges. Reads the whole table's status column: the sampler paces itself.
SELECT t.queue, t.status, t.hold, count(*)::int AS tasks
FROM task_scheduler_tasks t
GROUP BY t.queue, t.status, t.hold
