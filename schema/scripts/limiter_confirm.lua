-- After the claim commit: unused ids are released; a claimed id that holds a slot keeps it while the value is at most
-- the limit, else gives it back; one that holds none takes a free one. A kept slot is touched, so that a
-- reconciliation under way cannot drop it.
-- KEYS: 1 {docsched}:limiter, 2 {docsched}:slots:<queue>, 3 {docsched}:queues
-- ARGV: 1 epoch, 2 queue, 3 limit, 4 number of claimed ids, 5.. claimed ids, then unused ids (at most 512 in all)
-- Returns: the lost ids, which hold no slot now; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local limit, claimed = tonumber(ARGV[3]), tonumber(ARGV[4])
if #ARGV > claimed + 4 then redis.call('ZREM', KEYS[2], unpack(ARGV, claimed + 5)) end
local lost, kept, refused = {}, {}, {}
if claimed == 0 then return lost end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local value = redis.call('ZCARD', KEYS[2])
for i, touched_at in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 5, claimed + 4))) do
  local id = ARGV[i + 4]
  if touched_at and value > limit then
    value = value - 1
    refused[#refused + 1] = id
    lost[#lost + 1] = id
  elseif touched_at or value < limit then
    if not touched_at then value = value + 1 end
    kept[#kept + 1] = now
    kept[#kept + 1] = id
  else
    lost[#lost + 1] = id
  end
end
if #refused > 0 then redis.call('ZREM', KEYS[2], unpack(refused)) end
if #kept > 0 then
  redis.call('ZADD', KEYS[2], unpack(kept))
  redis.call('SADD', KEYS[3], ARGV[2])
end
return lost
