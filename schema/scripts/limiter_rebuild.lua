-- Replaces all slots by those of the open attempts and opens a new epoch on this server.
-- KEYS: 1 {docsched}:limiter, 2 {docsched}:queues
-- ARGV: 1 epoch as observed ('' for none), 2 new epoch, then pairs: queue, its open attempts' ids separated by blanks
-- Returns: 1; 0 when the store holds another epoch than observed: somebody else was first, nothing is changed
-- Ids come packed because a call takes far fewer arguments than there may be open attempts. The slot keys are not
-- declared: their names are in KEYS[2] and ARGV, and all carry the one hash tag.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
if (redis.call('HGET', KEYS[1], 'epoch') or '') ~= ARGV[1] then return 0 end

for _, queue in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  redis.call('DEL', '{docsched}:slots:' .. queue)
end
redis.call('DEL', KEYS[2])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for i = 3, #ARGV, 2 do
  local slots, chunk = '{docsched}:slots:' .. ARGV[i], {}
  for id in string.gmatch(ARGV[i + 1], '%S+') do
    chunk[#chunk + 1] = now
    chunk[#chunk + 1] = id
    if #chunk == 2000 then
      redis.call('ZADD', slots, unpack(chunk))
      chunk = {}
    end
  end
  if #chunk > 0 then redis.call('ZADD', slots, unpack(chunk)) end
  redis.call('SADD', KEYS[2], ARGV[i])
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'server', server)
return 1
