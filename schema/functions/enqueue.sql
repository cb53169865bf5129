-- Submits one task from a transaction of the caller's own: the same decisions as over HTTP (docsched_submit). Nobody sees
-- the task before the commit, which also wakes the pushers; after a rollback nothing is left. Until then the task is held:
-- other submits of it wait, over HTTP for two seconds at most.
--
-- outcome: created | refreshed | recreated | existing | stale; status: of the task, where stale of the latest version (null
-- when that is cleaned up). priority null: 5; max_retries null: the queue's, or as it was; traceparent null: a new trace.
-- What is wrong with an argument raises 22023.
--
-- SECURITY DEFINER: callers need EXECUTE on this and nothing on the tables. Temporary objects are searched last, so that
-- no caller can put one in the way of a table. enable_seqscan: a session keeps the plans of its first calls; made while the
-- tables are small they would read them from end to end, and a transaction of many calls would take the square of them.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
CREATE OR REPLACE FUNCTION docsched_enqueue(
  queue text, task_id bigint, task_version bigint, payload text, priority smallint DEFAULT NULL,
  run_at bigint DEFAULT NULL, max_retries int DEFAULT NULL, traceparent text DEFAULT NULL)
RETURNS TABLE (outcome text, status int, latest_version bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
  v_payload_max_bytes int;
  v_detail text;
BEGIN
  SELECT q.payload_max_bytes INTO v_payload_max_bytes FROM queues q WHERE q.queue = docsched_enqueue.queue;
  IF v_payload_max_bytes IS NULL THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('queue: there is no queue %L', queue), HINT = 'GET /v1/queues lists them.';
  END IF;
  IF task_id IS NULL OR task_id < 0 THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('task_id: expected 0 or more, got %L', task_id), HINT = 'Ids are integers 0 to 9223372036854775807.';
  END IF;
  IF task_version IS NULL OR task_version < 0 THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('task_version: expected 0 or more, got %L', task_version),
      HINT = 'Versions are integers 0 to 9223372036854775807; a higher one is newer.';
  END IF;
  IF priority NOT BETWEEN 1 AND 5 THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('priority: expected 1 to 5, got %L', priority), HINT = '1 is the highest; NULL means 5.';
  END IF;
  IF run_at < 0 OR run_at > docsched_now() + 31536000000 THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('run_at: expected ms since the epoch, at most a year ahead, got %L', run_at),
      HINT = 'Say (extract(epoch FROM now() + interval ''1 hour'') * 1000)::bigint.';
  END IF;
  IF max_retries NOT BETWEEN 0 AND 1000 THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('max_retries: expected 0 to 1000, got %L', max_retries), HINT = 'NULL means what the queue says.';
  END IF;
  IF traceparent !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('traceparent: expected a W3C traceparent, got %L', left(traceparent, 100)),
      HINT = 'For example 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01; NULL begins a new trace.';
  END IF;
  IF payload IS NULL THEN
    RAISE invalid_parameter_value USING
      MESSAGE = 'payload: expected JSON, got NULL', HINT = 'Say ''null'' for the JSON value null.';
  END IF;
  IF octet_length(payload) > v_payload_max_bytes THEN
    RAISE invalid_parameter_value USING
      MESSAGE = format('payload: %s bytes are more than the %s that queue %L takes', octet_length(payload),
                       v_payload_max_bytes, queue),
      HINT = 'Send a reference to the document instead.';
  END IF;
  BEGIN
    -- json, not jsonb, which refuses \u0000 and loses how numbers were written.
    PERFORM payload::json;
  EXCEPTION WHEN invalid_text_representation OR statement_too_complex THEN
    GET STACKED DIAGNOSTICS v_detail = PG_EXCEPTION_DETAIL;
    RAISE invalid_parameter_value USING
      MESSAGE = format('payload: %s', SQLERRM), DETAIL = v_detail, HINT = 'Text is JSON only in quotes: to_json(...)::text.';
  END;

  FOR outcome, status, latest_version IN
    SELECT s.outcome, CASE s.outcome WHEN 'stale' THEN s.latest_status ELSE s.status END,
           coalesce(s.latest_version, task_version)
    FROM docsched_submit(
      ARRAY[queue], ARRAY[task_id], ARRAY[task_version], ARRAY[coalesce(priority, 5)::int], ARRAY[payload],
      ARRAY[run_at], ARRAY[max_retries],
      -- A trace id alone: its first span decides whether the trace is recorded (src/trace.ts).
      ARRAY[coalesce(traceparent, (
        SELECT concat('00-', made.id, '-', left(made.id, 16), '-00')
        FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS id) made))],
      NULL) s
  LOOP
    IF outcome IN ('created', 'refreshed', 'recreated') THEN PERFORM pg_notify('docsched_wake', 'sql ' || queue); END IF;
    RETURN NEXT;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION docsched_enqueue(text, bigint, bigint, text, smallint, bigint, int, text) FROM PUBLIC;
