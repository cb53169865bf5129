-- How long a target is left alone after so many failures in a row: 1 s, 2 s, 4 s .. 60 s.
CREATE OR REPLACE FUNCTION docsched_left_alone_ms(failures int) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT least(60000, 1000 * 2 ^ least(failures - 1, 30))::bigint
$$;

-- How many pushes a target takes now, from all instances together; null: as many as there are slots.
-- failures: one, to see whether it is back (whoever takes it moves not_before). Back, or no longer busy: 4 in all at
-- first, twice as many each second, 4096 after 10 s; by then nobody counts.
CREATE OR REPLACE FUNCTION docsched_target_room(g targets, at bigint) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN g.not_before > at THEN 0
    WHEN g.failures > 0 THEN 1
    WHEN at - g.ramp_from < 10000 THEN greatest(0, (4 * 2 ^ ((at - g.ramp_from) / 1000.0))::int - g.ramp_claimed)
  END
$$;
