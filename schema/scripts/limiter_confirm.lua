-- After the claim commit. Unused ids are released; they also say that the queue has no use for more, so it wants nothing
-- any more. A claimed id, its own slot and mark not counted, keeps or takes a slot when there is room: below the limit,
-- below the global limit, and for a retry below the most marks. It holds a mark exactly when it is a retry. Kept slots
-- are touched, so that a reconciliation under way cannot drop them.
-- KEYS: 1 {docsched}:store, 2 {docsched}:slots:<queue>, 3 {docsched}:queues, 4 {docsched}:retries, 5 {docsched}:wants
-- ARGV: 1 epoch, 2 queue, 3 limit, 4 most marks, 5 global limit (0: none), 6 number of retries, 7 number of new tasks,
--   8.. ids of the retries, of the new tasks, unused ones (at most 512 in all)
-- Returns: the lost ids, which hold no slot now; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server', 'total')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local queue, limit, most, global = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local retries = tonumber(ARGV[6])
local claimed = retries + ARGV[7]
local lost, kept, gone = {}, {}, {}
if #ARGV < 8 then return lost end

local slots = redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 8))
local old_value, old_marks = redis.call('ZCARD', KEYS[2]), tonumber(redis.call('HGET', KEYS[4], queue) or 0)
local value, marks = old_value, old_marks
for i, touched_at in ipairs(slots) do
  if touched_at and string.byte(touched_at) == 45 then marks = marks - 1 end
  if touched_at and i > claimed then
    value = value - 1
    gone[#gone + 1] = ARGV[i + 7]
  end
end
local others = (held[3] or 0) - old_value

local time = redis.call('TIME')
local plain = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local marked = '-' .. plain
for i = 1, claimed do
  local id, retry = ARGV[i + 7], i <= retries
  if slots[i] then value = value - 1 end
  if value < limit and (global == 0 or value + others < global) and (not retry or marks < most) then
    value = value + 1
    if retry then marks = marks + 1 end
    kept[#kept + 1] = retry and marked or plain
    kept[#kept + 1] = id
  else
    if slots[i] then gone[#gone + 1] = id end
    lost[#lost + 1] = id
  end
end
if #gone > 0 then redis.call('ZREM', KEYS[2], unpack(gone)) end
if #kept > 0 then
  redis.call('ZADD', KEYS[2], unpack(kept))
  redis.call('SADD', KEYS[3], queue)
end
if value ~= old_value then redis.call('HINCRBY', KEYS[1], 'total', value - old_value) end
if marks ~= old_marks then redis.call('HINCRBY', KEYS[4], queue, marks - old_marks) end
if global > 0 and #ARGV > claimed + 7 then redis.call('HDEL', KEYS[5], queue) end
return lost
