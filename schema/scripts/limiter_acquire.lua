-- Takes slots under fresh attempt ids while the value is below the limit.
-- KEYS: 1 {docsched}:limiter, 2 {docsched}:slots:<queue> (zset: attempt id by time of last touch), 3 {docsched}:queues
-- ARGV: 1 epoch, 2 queue, 3 limit, 4.. ids (at most 512)
-- Returns: the granted ids, those already held among them; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local free = tonumber(ARGV[3]) - redis.call('ZCARD', KEYS[2])
local granted, added = {}, {}
for i, touched_at in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 4))) do
  if touched_at then
    granted[#granted + 1] = ARGV[i + 3]
  elseif free > 0 then
    free = free - 1
    granted[#granted + 1] = ARGV[i + 3]
    added[#added + 1] = now
    added[#added + 1] = ARGV[i + 3]
  end
end
if #added > 0 then
  redis.call('ZADD', KEYS[2], unpack(added))
  redis.call('SADD', KEYS[3], ARGV[2])
end
return granted
