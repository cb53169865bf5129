-- The environment's settings of an instance that starts. $1 settings jsonb, by column of the table queues
SELECT docsched_set_queue_defaults($1::jsonb)
