-- Up Migration

-- Each setting of a queue is what the API set for it (`own`, by column name) or else what the environment of the last
-- started instance says (queue_defaults). The columns hold the outcome, worked out whenever either changes
-- (schema/functions/queue.sql), so that every statement reads plain columns.
CREATE TABLE queue_defaults (
  only_row boolean CONSTRAINT queue_defaults_pkey PRIMARY KEY DEFAULT true CONSTRAINT queue_defaults_one CHECK (only_row),
  settings jsonb NOT NULL
);
ALTER TABLE queues
  ADD COLUMN own jsonb NOT NULL DEFAULT '{}' CONSTRAINT queues_own CHECK (jsonb_typeof(own) = 'object'),
  ADD COLUMN targets jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN cleanup_failed_ms bigint NOT NULL DEFAULT 604800000,
  ADD COLUMN cleanup_stopped_ms bigint NOT NULL DEFAULT 604800000,
  ADD COLUMN cleanup_timed_out_ms bigint NOT NULL DEFAULT 604800000,
  ADD COLUMN retry_share float8 NOT NULL DEFAULT 0.5 CONSTRAINT queues_retry_share CHECK (retry_share BETWEEN 0 AND 1),
  ADD COLUMN version_policy text NOT NULL DEFAULT 'keep'
    CONSTRAINT queues_version_policy CHECK (version_policy IN ('keep', 'stop')),
  ADD COLUMN fence text NOT NULL DEFAULT 'strict' CONSTRAINT queues_fence CHECK (fence IN ('strict', 'lenient')),
  ADD COLUMN callback_auth text NOT NULL DEFAULT 'attempt'
    CONSTRAINT queues_callback_auth CHECK (callback_auth IN ('attempt', 'signature')),
  ADD COLUMN secrets text[] NOT NULL DEFAULT '{}',
  ADD COLUMN paused boolean NOT NULL DEFAULT false,
  ADD COLUMN redriven_until bigint NOT NULL DEFAULT 0,
  ADD CONSTRAINT queues_lenient_is_signed CHECK (fence = 'strict' OR callback_auth = 'signature'),
  ADD CONSTRAINT queues_signature_has_secret CHECK (callback_auth = 'attempt' OR cardinality(secrets) > 0),
  ADD CONSTRAINT queues_weights_sum CHECK (
    priority_weights[1] + priority_weights[2] + priority_weights[3] + priority_weights[4] + priority_weights[5] > 0),
  DROP COLUMN target_url,
  DROP COLUMN cleanup_after_ms;
COMMENT ON COLUMN queues.redriven_until IS 'ms; when the last redriven task falls due: the next one comes after it';

-- Retries stand in lines of their own, so that the share of the slots they may hold is kept without walking over them.
DROP INDEX tasks_claim;
CREATE INDEX tasks_claim ON task_scheduler_tasks (queue, level, (retry_count > 0), place) WHERE status = 0 AND hold = 0;
-- By reason: kinds of failures are kept for different times, and are listed and redriven by it.
DROP INDEX tasks_finished;
CREATE INDEX tasks_finished ON task_scheduler_tasks (queue, status, reason, finished_at) WHERE status >= 2;
ALTER TABLE task_scheduler_tasks ADD CONSTRAINT tasks_reason CHECK ((status >= 3) = (reason IS NOT NULL));
COMMENT ON COLUMN task_scheduler_tasks.update_at IS 'ms; strictly increasing with each change of the row: its revision';

-- retry: it holds a slot of the retries' share.
ALTER TABLE attempts ADD COLUMN retry boolean NOT NULL DEFAULT false;
ALTER TABLE limiter_slots ADD COLUMN retry boolean NOT NULL DEFAULT false;
-- retries: how many of in_use. wanted: what in_use must be let grow to before others may borrow (within the queue's
-- guaranteed part of GLOBAL_LIMIT), because it asked for more than it got; void from wanted_until on.
ALTER TABLE limiter_usage
  ADD COLUMN retries int NOT NULL DEFAULT 0,
  ADD COLUMN wanted int NOT NULL DEFAULT 0,
  ADD COLUMN wanted_until bigint NOT NULL DEFAULT 0,
  ADD CONSTRAINT limiter_usage_retries CHECK (retries BETWEEN 0 AND in_use);

-- The breaker's record of a target, shared by all instances. failures in a row (0: closed); not_before: left alone until
-- then, after that one probe at a time; ramp_from: since when it takes pushes again, at a growing rate (ramp_claimed
-- counts them); error: what broke it.
ALTER TABLE targets
  ADD COLUMN ramp_from bigint NOT NULL DEFAULT 0,
  ADD COLUMN ramp_claimed int NOT NULL DEFAULT 0,
  ADD COLUMN error text;

-- How many tasks there are, exactly: task_counts, plus what changed since it was last brought up to date
-- (task_count_deltas, one row a statement and kind of task); see schema/functions/stats.sql. timed: how many of the tasks
-- have a time; time_ms: the sum of these times.
CREATE TABLE task_counts (
  queue text COLLATE "C" NOT NULL,
  status int NOT NULL,
  hold smallint NOT NULL,
  tasks bigint NOT NULL,
  timed bigint NOT NULL,
  time_ms numeric NOT NULL,
  CONSTRAINT task_counts_pkey PRIMARY KEY (queue, status, hold)
) WITH (fillfactor = 50);
CREATE TABLE task_count_deltas (
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  tasks bigint NOT NULL,
  timed bigint NOT NULL,
  status int NOT NULL,
  hold smallint NOT NULL,
  queue text COLLATE "C" NOT NULL,
  time_ms numeric NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX task_count_deltas_xid ON task_count_deltas (xid);
-- Deltas of transactions before folded_to are in task_counts. Readers begin there, so that deleted deltas which a long
-- transaction keeps from being vacuumed cost them nothing.
CREATE TABLE task_count_mark (
  only_row boolean CONSTRAINT task_count_mark_pkey PRIMARY KEY DEFAULT true
    CONSTRAINT task_count_mark_one CHECK (only_row),
  folded_to xid8 NOT NULL
) WITH (fillfactor = 50);

-- Which texts of schema/functions are in force.
CREATE TABLE docsched_functions (
  only_row boolean CONSTRAINT docsched_functions_pkey PRIMARY KEY DEFAULT true
    CONSTRAINT docsched_functions_one CHECK (only_row),
  hash text NOT NULL
);

-- Functions that take other arguments now.
DROP FUNCTION IF EXISTS docsched_submit(text[], bigint[], bigint[], int[], text[], bigint[], int[], text[]);
DROP FUNCTION IF EXISTS docsched_limiter_lock(text, text);
DROP FUNCTION IF EXISTS docsched_limiter_acquire(text, text, int, text[]);
DROP FUNCTION IF EXISTS docsched_limiter_confirm(text, text, int, text[], text[]);
DROP FUNCTION IF EXISTS docsched_limiter_repair(text, text, bigint, text[], text[]);
DROP FUNCTION IF EXISTS docsched_limiter_rebuild(text, text, text[], text[]);
DROP FUNCTION IF EXISTS docsched_retry_delay(queues, int);
