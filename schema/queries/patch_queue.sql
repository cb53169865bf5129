-- Changes some of a queue's settings. $1 queue text  $2 own jsonb: those set, by column  $3 text[]: columns set no more
UPDATE queues q
SET own = (q.own - $3::text[]) || $2::jsonb
WHERE q.queue = $1
RETURNING docsched_show_queue(q) AS queue
