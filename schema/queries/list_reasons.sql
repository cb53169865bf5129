-- For which reasons tasks of a queue are Failed. $1 queue text
SELECT r.reason FROM docsched_reasons($1, 3) AS r (reason)
