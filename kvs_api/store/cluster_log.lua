-- Calls of kvs_api.logs.cluster_log: the cluster's log. Goes on from quarantine.lua.
--
-- `:workers` holds the incarnation of each worker that is there, as the log says; empty for one that is not.

-- Never before the newest event of any experiment, because readers get both in one order.
local function stamp_cluster()
  local time = math.max(wall, tonumber(redis.call('GET', request.cluster_log .. ':time') or '0'))
  redis.call('SET', request.cluster_log .. ':time', time)
  return time
end

-- Before experiments' logs are read: the cluster's events have numbers in each. Of one that was erased nothing is kept.
function calls.reserve()
  for _, of in ipairs(request.logs) do
    if redis.call('EXISTS', of.experiment) == 1 then reserve(of.log) end
  end
  return {cluster = tonumber(redis.call('GET', request.cluster_log .. ':seq') or '0')}
end

-- All of the events, or none: who has not read what is there decided on something else. So one that is asked for twice is
-- refused the second time, and who asks reads that it is there.
function calls.cluster_log()
  if request.after ~= newest(request.cluster_log) then return {written = false} end
  local time = stamp_cluster()
  for _, entry in ipairs(request.events) do
    local seq = redis.call('INCR', request.cluster_log .. ':seq')
    redis.call('XADD', request.cluster_log, seq .. '-0', 't', time, 'e', entry.event)
    wake(request.cluster_log)
    if entry.worker then redis.call('HSET', request.cluster_log .. ':workers', entry.worker, entry.incarnation) end
  end
  return {written = true}
end
