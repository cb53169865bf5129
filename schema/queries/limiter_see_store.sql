-- The limiter store in force; when it is the caller's, leaves the proof that it was seen, at most once a second.
-- $1 text: epoch the caller's store holds, null when it holds none that counts  $2 instance text
-- Returns no row before the first opening, else backend, epoch, seen_by, age_ms: as they were before this call.
WITH seen AS (
  UPDATE limiter_state s
  SET seen_by = $2, seen_at = docsched_now()
  WHERE s.epoch = $1 AND s.seen_at <= docsched_now() - 1000
)
SELECT s.backend, s.epoch, s.seen_by, least(docsched_now() - s.seen_at, 2147483647)::int AS age_ms
FROM limiter_state s
