-- Works out a queue's settings: what the API set, else the environment's. PARSER_URL and with it `targets` of the
-- environment is for queue `default` alone.
CREATE OR REPLACE FUNCTION docsched_apply_queue_settings() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_defaults jsonb := coalesce((SELECT d.settings FROM queue_defaults d), '{}');
BEGIN
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
