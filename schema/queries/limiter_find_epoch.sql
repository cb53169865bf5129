-- The epoch the PostgreSQL limiter's rows belong to; no row when there are none.
SELECT s.epoch FROM limiter_store s
