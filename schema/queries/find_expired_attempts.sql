-- Open attempts past their deadline, oldest first; the settle checks again under lock.
-- (SELECT docsched_now()): read once, so that it can bound the index scan.
SELECT a.attempt_id, a.accepted_at
FROM attempts a
WHERE a.closed_at IS NULL AND a.deadline < (SELECT docsched_now())
ORDER BY a.deadline
LIMIT 500
