-- The highest version accepted of a task. $1 queue text  $2 task_id bigint
SELECT f.task_version FROM version_floors f WHERE f.queue = $1 AND f.task_id = $2
