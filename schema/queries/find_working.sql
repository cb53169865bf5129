-- Of the server processes $1 int[], those at work for their clients: busy, or done so lately that the answer may be on
-- its way. Of another user's processes state is null: they are let be. self: through a pooler it is another process than
-- the client was told.
SELECT pg_backend_pid() AS self, ARRAY(
    SELECT a.pid
    FROM pg_stat_activity a
    WHERE a.pid = ANY ($1::int[])
      AND (a.state IS DISTINCT FROM 'idle' OR a.state_change > clock_timestamp() - interval '1 second')
  ) AS working
