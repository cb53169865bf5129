-- First step of a rebuild: puts a new epoch in force, which fences every claim of the one before.
-- $1 text: epoch as observed, null when there was no row  $2 new epoch text  $3 backend text  $4 instance text
-- $5 stale_ms bigint: another instance's proof younger than this means that its store is in force, so do nothing
-- Returns one row when it was done.
--
-- FOR UPDATE waits for claims in flight, which hold the row FOR KEY SHARE (or SHARE) until they commit; a plain UPDATE
-- would not wait for the former.
WITH observed AS MATERIALIZED (
  SELECT s.only_row
  FROM limiter_state s
  WHERE s.epoch = $1 AND (s.seen_by = $4 OR s.seen_at <= docsched_now() - $5::bigint)
  FOR UPDATE
),
first AS (
  INSERT INTO limiter_state (backend, epoch, seen_by, seen_at)
  SELECT $3::text, $2::text, $4::text, docsched_now()
  WHERE $1::text IS NULL
  ON CONFLICT (only_row) DO NOTHING
  RETURNING epoch
),
next AS (
  UPDATE limiter_state s
  SET backend = $3, epoch = $2, seen_by = $4, seen_at = docsched_now()
  FROM observed o
  WHERE s.only_row = o.only_row
  RETURNING s.epoch
)
SELECT epoch FROM first
UNION ALL
SELECT epoch FROM next
