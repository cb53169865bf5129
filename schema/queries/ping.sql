-- Is the database there, and does it take writes?
SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off' AS writable
