-- Applies what a reconciliation planned. The plan may be old by now: a slot touched after the cut-off was confirmed
-- meanwhile and stays, and one that is there by now is not added again.
-- KEYS: 1 {docsched}:limiter, 2 {docsched}:slots:<queue>, 3 {docsched}:queues
-- ARGV: 1 epoch, 2 queue, 3 cut-off (ms, this server's clock), 4 ids to drop, 5 ids to add (each separated by blanks)
-- Returns: {number dropped, added ids}; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local cutoff, dropped, added = tonumber(ARGV[3]), 0, {}
for id in string.gmatch(ARGV[4], '%S+') do
  local touched_at = redis.call('ZSCORE', KEYS[2], id)
  if touched_at and tonumber(touched_at) <= cutoff then
    dropped = dropped + redis.call('ZREM', KEYS[2], id)
  end
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for id in string.gmatch(ARGV[5], '%S+') do
  if redis.call('ZADD', KEYS[2], 'NX', now, id) == 1 then added[#added + 1] = id end
end
if #added > 0 then redis.call('SADD', KEYS[3], ARGV[2]) end
return {dropped, added}
