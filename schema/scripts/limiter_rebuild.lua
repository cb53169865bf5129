-- Replaces all slots by those of the open attempts and opens a new epoch on this server. No queue wants anything.
-- KEYS: 1 {docsched}:store, 2 {docsched}:queues, 3 {docsched}:retries, 4 {docsched}:wants
-- ARGV: 1 epoch as observed ('' for none), 2 new epoch, then for each queue: its name, the ids of its open attempts that
--   are retries, of those that are not (each separated by blanks)
-- Returns: 1; 0 when the store holds another epoch than observed: somebody else was first, nothing is changed
-- Ids come packed because a call takes far fewer arguments than there may be open attempts. The slot keys are not
-- declared: their names are in KEYS[2] and ARGV, and all carry the one hash tag.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if (redis.call('HGET', KEYS[1], 'epoch') or '') ~= ARGV[1] then return 0 end

for _, queue in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  redis.call('DEL', '{docsched}:slots:' .. queue)
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function add(slots, ids, touched_at)
  local count, chunk = 0, {}
  for id in string.gmatch(ids, '%S+') do
    count = count + 1
    chunk[#chunk + 1] = touched_at
    chunk[#chunk + 1] = id
    if #chunk == 2000 then
      redis.call('ZADD', slots, unpack(chunk))
      chunk = {}
    end
  end
  if #chunk > 0 then redis.call('ZADD', slots, unpack(chunk)) end
  return count
end

local total = 0
for i = 3, #ARGV, 3 do
  local slots = '{docsched}:slots:' .. ARGV[i]
  local marks = add(slots, ARGV[i + 1], '-' .. now)
  total = total + marks + add(slots, ARGV[i + 2], now)
  redis.call('SADD', KEYS[2], ARGV[i])
  redis.call('HSET', KEYS[3], ARGV[i], marks)
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'server', server, 'total', total)
return 1
