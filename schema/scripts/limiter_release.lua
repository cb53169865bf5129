-- Gives slots back. Ids that hold none are passed over.
-- KEYS: 1 {docsched}:limiter, 2 {docsched}:slots:<queue>
-- ARGV: 1 epoch, 2.. ids (at most 512)
-- Returns: how many were given back; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

return redis.call('ZREM', KEYS[2], unpack(ARGV, 2))
