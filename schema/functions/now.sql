-- The one clock: PostgreSQL's, in milliseconds since the epoch. Not transaction time: a group commit may wait.
CREATE OR REPLACE FUNCTION docsched_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
  RETURN (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
