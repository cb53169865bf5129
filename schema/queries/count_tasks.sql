-- Tasks by queue, state and hold, for the gauges: exact, without a look at the tasks (schema/functions/stats.sql).
SELECT n.queue, n.status, n.hold, n.tasks::float8 AS tasks
FROM task_counts_now n
