-- Slots in use.
-- KEYS: 1 {docsched}:store, 2.. {docsched}:slots:<queue>
-- ARGV: 1 epoch
-- Returns: the values, in the order of the keys; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local values = {}
for i = 2, #KEYS do values[i - 1] = redis.call('ZCARD', KEYS[i]) end
return values
