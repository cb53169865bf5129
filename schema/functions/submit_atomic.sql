-- All or nothing: docsched_submit without waiting, rolled back when an entry is stale, locked or of an unknown queue.
-- Answers docsched_submit's rows in order, up to the first such entry: then that is the last row, nothing is stored, and
-- the rows before it only say what would have been.
CREATE OR REPLACE FUNCTION docsched_submit_atomic(
  p_queue text[], p_task_id bigint[], p_task_version bigint[], p_priority int[], p_payload text[],
  p_run_at bigint[], p_max_retries int[], p_traceparent text[])
RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_row record;
BEGIN
  FOR v_row IN
    SELECT *
    FROM docsched_submit(
      p_queue, p_task_id, p_task_version, p_priority, p_payload, p_run_at, p_max_retries, p_traceparent, 1000) s
    ORDER BY s.ord
  LOOP
    RETURN NEXT v_row;
    -- Caught below: it takes back what was written, not what was returned.
    IF v_row.outcome IN ('stale', 'unknown_queue', 'locked') THEN RAISE SQLSTATE 'DS001'; END IF;
  END LOOP;
EXCEPTION WHEN SQLSTATE 'DS001' THEN
  RETURN;
END
$$;
