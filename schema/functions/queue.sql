-- Works out a queue's settings: what the API set, else the environment's. PARSER_URL and with it `targets` of the
-- environment is for queue `default` alone.
--
-- A new queue waits for a change of the environment's settings under way, and that change for it: otherwise the change
-- could not see the queue, nor the queue the change. (Of a queue that exists, one waits for the other's row anyway.)
CREATE OR REPLACE FUNCTION docsched_apply_queue_settings() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_defaults jsonb;
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM 1 FROM queue_defaults FOR SHARE;
  END IF;
  v_defaults := coalesce((SELECT d.settings FROM queue_defaults d), '{}');
  IF NEW.queue <> 'default' THEN v_defaults := v_defaults - 'targets'; END IF;
  NEW := jsonb_populate_record(NEW, '{"targets": []}' || v_defaults || NEW.own);
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER queues_settings BEFORE INSERT OR UPDATE OF own ON queues
  FOR EACH ROW EXECUTE FUNCTION docsched_apply_queue_settings();

-- Settings of the environment: in force for whatever the API did not set. Creates queue `default`.
CREATE OR REPLACE FUNCTION docsched_set_queue_defaults(p_settings jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO queue_defaults AS d (settings) VALUES (p_settings)
  ON CONFLICT (only_row) DO UPDATE SET settings = excluded.settings WHERE d.settings <> excluded.settings;
  IF FOUND THEN UPDATE queues SET own = own; END IF;
  INSERT INTO queues (queue) VALUES ('default') ON CONFLICT (queue) DO NOTHING;
END
$$;

-- A queue for an answer: each column, what of them the API set (own), and of the secrets only how many there are.
CREATE OR REPLACE FUNCTION docsched_show_queue(q queues) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT to_jsonb(q) - 'secrets' || jsonb_build_object('own', q.own - 'secrets', 'secret_count', cardinality(q.secrets))
$$;

-- How long a Failed (3) or Stopped (4) task is kept, ms. Timed out: nobody decided about it in time.
CREATE OR REPLACE FUNCTION docsched_kept_ms(q queues, p_status int, p_reason text) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_status = 4 THEN q.cleanup_stopped_ms
    WHEN p_reason IN ('pending_expired', 'processing_expired', 'in_doubt_expired') THEN q.cleanup_timed_out_ms
    ELSE q.cleanup_failed_ms
  END
$$;

-- The reasons for which tasks of a queue are Failed (3) or Stopped (4). Steps through tasks_finished from one to the
-- next: the number of tasks does not matter. VOLATILE so that it is not inlined: then the planner would guess 100 reasons,
-- and prefer reading a whole queue to looking at so many.
CREATE OR REPLACE FUNCTION docsched_reasons(p_queue text, p_status int) RETURNS SETOF text LANGUAGE sql VOLATILE ROWS 8 AS $$
  WITH RECURSIVE found AS (
    SELECT min(t.reason) AS reason
    FROM task_scheduler_tasks t
    WHERE t.queue = p_queue AND t.status = p_status AND t.status >= 2
    UNION ALL
    SELECT (SELECT min(t.reason)
            FROM task_scheduler_tasks t
            WHERE t.queue = p_queue AND t.status = p_status AND t.status >= 2 AND t.reason > f.reason)
    FROM found f
    WHERE f.reason IS NOT NULL
  )
  SELECT f.reason FROM found f WHERE f.reason IS NOT NULL
$$;
