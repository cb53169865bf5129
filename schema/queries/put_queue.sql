-- Sets a queue's settings to these and no others; creates it. $1 queue text  $2 own jsonb, by column
-- xmax is 0 in a row that this statement inserted, not in one that it found.
INSERT INTO queues AS q (queue, own)
VALUES ($1, $2::jsonb)
ON CONFLICT (queue) DO UPDATE SET own = excluded.own
RETURNING q.xmax = 0 AS created, docsched_show_queue(q) AS queue
