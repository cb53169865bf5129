-- PostgreSQL's time, ms: what is compared with times of rows is read there.
SELECT docsched_now() AS now
