-- What the store holds, and whether it can be trusted. Writes, so that a server that refuses writes (out of memory, cannot
-- save, a replica) fails here, and not at each acquire.
-- KEYS: 1 {docsched}:store (hash: epoch, server, looked)
-- Returns: {epoch or false, 1 when this very server wrote it else 0, maxmemory policy}
-- server = run_id + master_replid: a restart changes the first; a promotion changes the second, also when a server
-- was demoted, overwritten by a lagging replica's data and promoted again.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
redis.call('HINCRBY', KEYS[1], 'looked', 1)
local held = redis.call('HMGET', KEYS[1], 'epoch', 'server')
local policy = string.match(redis.call('INFO', 'memory'), 'maxmemory_policy:([%w-]+)')
return {held[1], held[2] == server and 1 or 0, policy}
