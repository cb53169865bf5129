-- Applies what a reconciliation planned. The plan may be old by now: a slot touched after the cut-off was confirmed
-- meanwhile and stays, and one that is there by now is not added again. A slot of the ids named holds a mark exactly
-- when it is a retry's.
-- KEYS: 1 {docsched}:store, 2 {docsched}:slots:<queue>, 3 {docsched}:queues, 4 {docsched}:retries
-- ARGV: 1 epoch, 2 queue, 3 cut-off (ms, this server's clock), 4 ids to drop, 5 retries and 6 new tasks that must hold a
--   slot (each separated by blanks)
-- Returns: {number dropped, added ids}; false when this is not the epoch or the data was lost
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
if held[1] ~= ARGV[1] or held[2] ~= server then return false end

local cutoff, dropped, marks, added = tonumber(ARGV[3]), 0, 0, {}
for id in string.gmatch(ARGV[4], '%S+') do
  local touched_at = tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
  if touched_at and math.abs(touched_at) <= cutoff then
    dropped = dropped + redis.call('ZREM', KEYS[2], id)
    if touched_at < 0 then marks = marks - 1 end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i, sign in ipairs({-1, 1}) do
  for id in string.gmatch(ARGV[i + 4], '%S+') do
    local touched_at = tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
    if not touched_at then
      touched_at = now
      added[#added + 1] = id
    end
    marks = marks + (touched_at < 0 and -1 or 0) + (sign < 0 and 1 or 0)
    redis.call('ZADD', KEYS[2], string.format('%.0f', sign * math.abs(touched_at)), id)
  end
end
if #added > 0 then redis.call('SADD', KEYS[3], ARGV[2]) end
redis.call('HINCRBY', KEYS[1], 'total', #added - dropped)
redis.call('HINCRBY', KEYS[4], ARGV[2], marks)
return {dropped, added}
