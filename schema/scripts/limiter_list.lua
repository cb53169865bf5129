-- All slots, for a reconciliation.
-- KEYS: 1 {docsched}:store, 2 {docsched}:queues
-- ARGV: 1 epoch
-- Returns: {now, queue, {id, touched_at, id, touched_at ..}, queue, {..} ..}, as in limiter_acquire.lua; false when this is
-- not the epoch or the data was lost. The slot keys are not declared: their names are in KEYS[2], all carry one hash tag.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local time = redis.call('TIME')
local answer = {string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  answer[#answer + 1] = queue
  answer[#answer + 1] = redis.call('ZRANGE', '{docsched}:slots:' .. queue, 0, -1, 'WITHSCORES')
end
return answer
