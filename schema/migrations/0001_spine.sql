-- Up Migration

-- Tables and indexes. The functions are in schema/functions, each brought up to date whenever it changes.

-- Settings in force for each queue. Written at start from the environment; every statement reads them here,
-- so that all instances decide alike.
CREATE TABLE queues (
  queue text COLLATE "C" CONSTRAINT queues_pkey PRIMARY KEY
    CONSTRAINT queues_name CHECK (queue ~ '^[a-z0-9_-]{1,64}$'),
  target_url text,
  concurrency_limit int NOT NULL CONSTRAINT queues_limit CHECK (concurrency_limit >= 0),
  priority_weights int[] NOT NULL CONSTRAINT queues_weights CHECK (cardinality(priority_weights) = 5),
  push_timeout_ms bigint NOT NULL,
  pending_expired_ms bigint NOT NULL,
  processing_expired_ms bigint NOT NULL,
  processing_max_ms bigint NOT NULL,
  success_expired_ms bigint NOT NULL,
  cleanup_after_ms bigint NOT NULL,
  version_floor_ms bigint NOT NULL,
  max_retries int NOT NULL,
  retry_strategy text NOT NULL CONSTRAINT queues_retry CHECK (retry_strategy IN ('immediate', 'fixed', 'exponential')),
  retry_base_ms bigint NOT NULL,
  retry_max_ms bigint NOT NULL,
  retry_jitter float8 NOT NULL CONSTRAINT queues_jitter CHECK (retry_jitter BETWEEN 0 AND 1),
  retry_demote int NOT NULL CONSTRAINT queues_demote CHECK (retry_demote BETWEEN 0 AND 4),
  payload_max_bytes int NOT NULL,
  result_max_bytes int NOT NULL
);

-- status: 0 Pending, 1 Processing, 2 Success, 3 Failed, 4 Stopped.
-- hold (of a Pending row): 0 claimable, 1 delayed until ready_at, 2 blocked by a higher waiting version.
-- level and place: where the row stands in line. level: its priority, lowered by retry_demote after a retry; place: its
-- id, or where a retry by hand put it; or better ones taken over from lower versions of the same task that wait behind
-- it (docsched_order_versions).
CREATE SEQUENCE task_ids;
CREATE TABLE task_scheduler_tasks (
  queue text COLLATE "C" NOT NULL,
  task_id bigint NOT NULL CONSTRAINT tasks_task_id CHECK (task_id >= 0),
  task_version bigint NOT NULL CONSTRAINT tasks_task_version CHECK (task_version >= 0),
  id bigint NOT NULL DEFAULT nextval('task_ids'),
  create_at bigint NOT NULL,
  update_at bigint NOT NULL,
  run_at bigint,
  pending_since bigint NOT NULL,
  ready_at bigint,
  next_retry_time bigint,
  started_at bigint,
  finished_at bigint,
  deadline bigint,
  place bigint NOT NULL,
  status_code bigint,
  status int NOT NULL,
  retry_count int NOT NULL DEFAULT 0,
  max_retries int NOT NULL,
  attempt int NOT NULL DEFAULT 0,
  priority smallint NOT NULL CONSTRAINT tasks_priority CHECK (priority BETWEEN 1 AND 5),
  level smallint NOT NULL CONSTRAINT tasks_level CHECK (level BETWEEN 1 AND 5),
  hold smallint NOT NULL DEFAULT 0 CONSTRAINT tasks_hold CHECK (hold BETWEEN 0 AND 2),
  has_blocked boolean NOT NULL DEFAULT false,
  attempt_id text COLLATE "C",
  reason text,
  status_msg text,
  traceparent text,
  payload text NOT NULL,
  result text,
  CONSTRAINT tasks_pkey PRIMARY KEY (queue, task_id, task_version),
  CONSTRAINT tasks_status CHECK (status BETWEEN 0 AND 4),
  CONSTRAINT tasks_finished CHECK ((status >= 2) = (finished_at IS NOT NULL)),
  CONSTRAINT tasks_attempt CHECK ((status = 1) = (attempt_id IS NOT NULL)),
  CONSTRAINT tasks_delayed CHECK ((status = 0 AND hold = 1) = (ready_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER SEQUENCE task_ids OWNED BY task_scheduler_tasks.id;

-- There is no index on Processing rows on purpose: settle goes through the primary key, and a small partial index
-- would tempt the planner to walk its dead entries. What is Processing is found through its open attempt.
CREATE INDEX tasks_claim ON task_scheduler_tasks (queue, level, place) WHERE status = 0 AND hold = 0;
CREATE INDEX tasks_delayed ON task_scheduler_tasks (ready_at) WHERE status = 0 AND hold = 1;
CREATE INDEX tasks_blocked ON task_scheduler_tasks (queue, task_id, task_version) WHERE status = 0 AND hold = 2;
-- Pending rows, said so that the claim's own condition does not imply it: the claim must use tasks_claim.
CREATE INDEX tasks_pending ON task_scheduler_tasks (queue, pending_since) WHERE finished_at IS NULL AND deadline IS NULL;
CREATE INDEX tasks_finished ON task_scheduler_tasks (queue, status, finished_at) WHERE status >= 2;

-- The highest version ever accepted for a task; outlives the rows. Its row is also the lock that serialises
-- submits of one task.
CREATE TABLE version_floors (
  queue text COLLATE "C" NOT NULL,
  task_id bigint NOT NULL,
  task_version bigint NOT NULL,
  accepted_at bigint NOT NULL,
  CONSTRAINT version_floors_pkey PRIMARY KEY (queue, task_id)
) WITH (fillfactor = 90);

-- One try to have a task parsed. task_row_id is the task row's id: a recreated task has a new one.
-- accepted_at: when the parser was first known to have accepted it. An open attempt whose task row does not name it
-- any more was cancelled; it keeps its slot until callback, progress with done, or deadline.
CREATE TABLE attempts (
  attempt_id text COLLATE "C" CONSTRAINT attempts_pkey PRIMARY KEY,
  task_row_id bigint NOT NULL,
  queue text COLLATE "C" NOT NULL,
  task_id bigint NOT NULL,
  task_version bigint NOT NULL,
  claimed_at bigint NOT NULL,
  deadline bigint NOT NULL,
  max_deadline bigint NOT NULL,
  accepted_at bigint,
  closed_at bigint,
  progress_at bigint,
  number int NOT NULL,
  progress_percent real,
  target text NOT NULL,
  outcome text,
  error text,
  progress_message text,
  CONSTRAINT attempts_closed CHECK ((closed_at IS NULL) = (outcome IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX attempts_of_task ON attempts (task_row_id);
CREATE INDEX attempts_open ON attempts (deadline) WHERE closed_at IS NULL;
CREATE INDEX attempts_closed_at ON attempts (closed_at) WHERE closed_at IS NOT NULL;

-- Parsers that are broken or busy are left alone until not_before; shared by all instances.
CREATE TABLE targets (
  url text COLLATE "C" CONSTRAINT targets_pkey PRIMARY KEY,
  failures int NOT NULL,
  not_before bigint NOT NULL,
  failed_at bigint NOT NULL
) WITH (fillfactor = 50);

-- Which limiter store is in force. One row. seen_at/seen_by: the last proof by an instance that the store holds
-- this epoch; while it is fresh no other store may be opened.
CREATE TABLE limiter_state (
  only_row boolean CONSTRAINT limiter_state_pkey PRIMARY KEY DEFAULT true CONSTRAINT limiter_state_one CHECK (only_row),
  backend text NOT NULL,
  epoch text NOT NULL,
  seen_by text NOT NULL,
  seen_at bigint NOT NULL
) WITH (fillfactor = 50);

-- The PostgreSQL limiter. limiter_store: the epoch its rows belong to. limiter_usage: in_use counts the queue's rows
-- in limiter_slots; its row is what changes of a queue's slots serialise on.
--
-- UNLOGGED: a slot costs no wait for the disk. A crash of PostgreSQL empties all three together, the epoch is then
-- gone, and the limiter is rebuilt from the open attempts like one whose Redis was restarted.
CREATE UNLOGGED TABLE limiter_store (
  only_row boolean CONSTRAINT limiter_store_pkey PRIMARY KEY DEFAULT true CONSTRAINT limiter_store_one CHECK (only_row),
  epoch text NOT NULL
);
CREATE UNLOGGED TABLE limiter_usage (
  queue text COLLATE "C" CONSTRAINT limiter_usage_pkey PRIMARY KEY,
  in_use int NOT NULL CONSTRAINT limiter_usage_in_use CHECK (in_use >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE UNLOGGED TABLE limiter_slots (
  attempt_id text COLLATE "C" CONSTRAINT limiter_slots_pkey PRIMARY KEY,
  queue text COLLATE "C" NOT NULL,
  touched_at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The watcher's jobs: when each last ended (completed_at), and their leases when there is no Redis.
CREATE TABLE watcher_leases (
  job text CONSTRAINT watcher_leases_pkey PRIMARY KEY,
  holder text NOT NULL,
  expires_at bigint NOT NULL,
  completed_at bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
