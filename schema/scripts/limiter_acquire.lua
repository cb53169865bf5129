-- Takes slots under new attempt ids while the value is below the limit, and under a global limit while the total is
-- below it and the slot is either within the queue's guaranteed part or not owed to others. Of the slots taken as many
-- hold a mark as the share of the retries allows. Coming short under a global limit leaves a want.
-- KEYS: 1 {docsched}:store (hash: epoch, server, total: slots of all queues), 2 {docsched}:slots:<queue> (zset: attempt
--   id by the time of its last touch in ms, negative while the slot holds a retry's mark), 3 {docsched}:queues (set),
--   4 {docsched}:retries (hash: queue -> number of marks), 5 {docsched}:wants (hash: queue -> what its value must be let
--   grow to before others may borrow, until when in ms)
-- ARGV: 1 epoch, 2 queue, 3 limit, 4 most marks, 5 global limit (0: none), 6 guaranteed part of it, 7 a want's life in
--   ms, 8.. ids (at most 512)
-- Returns: {granted ids, those already held among them; how many of them hold a mark}; false when this is not the epoch
-- or the data was lost. Slot keys of other queues are not declared: their names are in KEYS[5], all carry one hash tag.
-- A zset, not a hash: of up to 512 entries Redis keeps a hash as a list, and looks each id up from its beginning.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server', 'total')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local queue, limit, global, guaranteed = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.call('ZCARD', KEYS[2])
local free = limit - value
if global > 0 then
  local room, owed = global - (held[3] or 0), 0
  local wants = redis.call('HGETALL', KEYS[5])
  for i = 1, #wants, 2 do
    local reach, ends = string.match(wants[i + 1], '(%d+) (%d+)')
    if tonumber(ends) <= now then
      redis.call('HDEL', KEYS[5], wants[i])
    elseif wants[i] ~= queue then
      owed = owed + math.max(0, reach - redis.call('ZCARD', '{docsched}:slots:' .. wants[i]))
    end
  end
  free = math.min(free, math.max(room - owed, math.min(room, guaranteed - value)))
end

local spare = ARGV[4] - (redis.call('HGET', KEYS[4], queue) or 0)
local plain = string.format('%.0f', now)
local marked = '-' .. plain
local granted, retries, added, asked, reserved = {}, 0, {}, 0, 0
for i, touched_at in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 8))) do
  local id = ARGV[i + 7]
  if touched_at then
    granted[#granted + 1] = id
    if string.byte(touched_at) == 45 then retries = retries + 1 end
  else
    asked = asked + 1
    if free > 0 then
      free = free - 1
      granted[#granted + 1] = id
      if reserved < spare then
        reserved = reserved + 1
        added[#added + 1] = marked
      else
        added[#added + 1] = plain
      end
      added[#added + 1] = id
    end
  end
end
if #added > 0 then
  redis.call('ZADD', KEYS[2], unpack(added))
  redis.call('HINCRBY', KEYS[1], 'total', #added / 2)
  redis.call('SADD', KEYS[3], queue)
end
if reserved > 0 then redis.call('HINCRBY', KEYS[4], queue, reserved) end
if global > 0 and asked > #added / 2 then
  local reach = math.min(guaranteed, limit, value + asked)
  redis.call('HSET', KEYS[5], queue, string.format('%.0f %.0f', reach, now + ARGV[7]))
end
return {granted, retries + reserved}
