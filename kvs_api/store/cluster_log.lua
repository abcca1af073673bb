-- The cluster log. Called by kvs_api.logs.cluster_log; follows experiment_quarantine.lua.
--
-- `:workers` maps each worker to its incarnation in the log, or to an empty string after the worker has left.

-- Return the time of the next event, never earlier than any experiment's newest event: readers merge both logs.
local function stamp_cluster()
  local time = math.max(wall, tonumber(redis.call('GET', request.cluster_log .. ':time') or '0'))
  redis.call('SET', request.cluster_log .. ':time', time)
  return time
end

-- Reserve numbers for cluster events in the experiments' logs, before these are read. Skips deleted experiments.
function calls.reserve()
  for _, each in ipairs(request.logs) do
    if redis.call('EXISTS', each.experiment) == 1 then reserve(each.log) end
  end
  return {cluster = tonumber(redis.call('GET', request.cluster_log .. ':seq') or '0')}
end

-- Append all events. Refuse the call if the caller has not read the newest event. A repeated call is also refused; its
-- caller then finds the events in the log.
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
