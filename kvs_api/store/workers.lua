-- Workers and the controller's lease. Called by kvs_api.store.workers; follows history.lua, the last part of the script.

function calls.register()
  redis.call('SADD', request.workers, request.name)
  if redis.call('HGET', request.worker, 'incarnation') == request.incarnation then
    -- Repeated call: keep the inbox, which may already hold tasks.
    redis.call('HSET', request.worker, 'record', request.record, 'reported', now)
    return {seq = 0}
  end
  vacate_all(request.worker)
  redis.call('HSET', request.worker, 'record', request.record, 'incarnation', request.incarnation, 'reported', now,
    'free', '', 'running', '', 'leaving', '', 'devices', request.devices)
  redis.call('DEL', request.inbox, request.inbox .. ':seq', request.recent)
  notify(request.cluster)
  return {seq = 0}
end

-- Request the stack trace of a running attempt. Appends no event, because no state changes.
function calls.request_stacks()
  local task = task_of(request.key)
  if task.attempt ~= request.attempt or task.worker ~= request.worker or task.state ~= 'running' then
    return {refused = describe(task)}
  end
  if redis.call('HGET', request.worker_key, 'incarnation') ~= task.incarnation then
    return {refused = request.worker .. ' has restarted'}
  end
  if redis.call('SET', request.question, '', 'NX', 'EX', request.kept_s) then post(request.inbox, request.entry, '') end
  return {seq = 0}
end

-- Remove inbox entries that the worker has read. Ignores cursors of another incarnation.
function calls.trim()
  if redis.call('HGET', request.worker, 'incarnation') == request.incarnation then
    redis.call('XTRIM', request.inbox, 'MINID', string.format('%d-0', request.after + 1))
  end
  return {}
end

function calls.remove()
  local known = redis.call('HGET', request.worker, 'incarnation')
  if not known then return {missing = true} end
  if request.incarnation and request.incarnation ~= known then return {current = known} end
  redis.call('SREM', request.workers, request.name)
  vacate_all(request.worker)
  redis.call('DEL', request.worker, request.inbox, request.inbox .. ':seq', request.recent, request.history)
  if request.health and redis.call('HDEL', request.health, request.name) == 1 then
    redis.call('INCR', request.health .. ':seq')
  end
  notify(request.cluster)
  return {seq = 0}
end

-- Write the health of a worker's machine, unless it has changed since the caller read it.
function calls.health()
  if tonumber(redis.call('GET', request.health .. ':seq') or '0') ~= request.after then return {outdated = true} end
  if request.record then
    if redis.call('EXISTS', request.worker) == 0 then return {missing = true} end
    redis.call('HSET', request.health, request.name, request.record)
  end
  if request.incident then
    redis.call('RPUSH', request.health .. ':incidents', request.incident)
    redis.call('LTRIM', request.health .. ':incidents', -200, -1)
  end
  redis.call('INCR', request.health .. ':seq')
  if request.entry then post(request.inbox, request.entry, '') end
  notify(request.cluster)
  return {seq = 0}
end

-- Write a document. The last writer wins.
function calls.put()
  if request.kept_s then
    redis.call('SET', request.key, request.record, 'EX', request.kept_s)
  else
    redis.call('SET', request.key, request.record)
  end
  return {seq = 0}
end

-- Replace, answer or withdraw the size request. Answers and withdrawals must not affect a newer request.
function calls.size()
  local known = redis.call('GET', request.size)
  local requested = known and cjson.decode(known).workers
  if request.only_if_pending and requested ~= request.workers then return {outdated = true} end
  if request.unless_open then
    local open = redis.call('LRANGE', request.queue, 0, -1)
    if #open > 0 then return {open = open} end
  end
  if not request.record then
    redis.call('DEL', request.size)
    return {seq = 0}
  end
  redis.call('SET', request.size, request.record)
  if not request.only_if_pending then notify(request.cluster) end
  return {seq = 0}
end

-- Return the store's clock. A new process of kvs_api continues to count from there.
function calls.join()
  if redis.call('EXISTS', request.clock) == 1 then return {clock = now} end
  -- No process has set the clock before: start at the time of the machine.
  now = wall
  redis.call('SET', request.clock, string.format('%d', now))
  return {clock = now}
end

function calls.lead()
  local fields = redis.call('HMGET', request.leader, 'holder', 'term', 'until', 'process')
  local holder, term, until_ms = fields[1], tonumber(fields[2] or '0'), tonumber(fields[3] or '0')
  local is_same = holder == request.holder and (fields[4] or '') == request.process
  if not is_same then
    -- A restarted controller does not wait for the lease of the process it replaces. If that process is still alive, its
    -- term has ended, and it waits for the new lease.
    local replaces = holder == request.holder and request.is_start
    if holder and until_ms > now and not replaces then return {term = 0, holder = holder} end
    term = term + 1
  end
  redis.call('HSET', request.leader, 'holder', request.holder, 'process', request.process, 'term', term,
    'until', now + request.ttl_ms, 'open_runs', request.open_runs or 1)
  -- Accept `attended` only from the holder of the last lease. Otherwise another controller may have started runs since.
  if request.attended and is_same then
    redis.call('HSET', request.leader, 'attended', request.attended)
  end
  return {term = term, holder = request.holder}
end

-- Return the current term if the call's term, in the call or the request's header, is outdated; nil otherwise.
local function newer_term()
  local leads = tonumber(redis.call('HGET', request.leader, 'term') or '0')
  if request.term and request.term ~= leads then return leads end
  if request.fence and request.fence ~= leads and request.call ~= 'lead' then return leads end
  return nil
end

local stale = newer_term()
return cjson.encode(stale and {stale = stale} or calls[request.call]())
