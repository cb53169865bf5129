-- Gives slots back, and with them their marks. Ids that hold none are passed over.
-- KEYS: 1 {docsched}:store, 2 {docsched}:slots:<queue>, 3 {docsched}:queues, 4 {docsched}:retries
-- ARGV: 1 epoch, 2 queue, 3.. ids (at most 512)
-- Returns: how many were given back; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local marks = 0
if tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or 0) > 0 then
  for _, touched_at in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 3))) do
    if touched_at and string.byte(touched_at) == 45 then marks = marks + 1 end
  end
end
local released = redis.call('ZREM', KEYS[2], unpack(ARGV, 3))
if released > 0 then redis.call('HINCRBY', KEYS[1], 'total', -released) end
if marks > 0 then redis.call('HINCRBY', KEYS[4], ARGV[2], -marks) end
return released
