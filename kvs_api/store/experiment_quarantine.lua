-- Experiments with an unreadable log or record. Called by kvs_api.store.experiment_quarantine; follows experiments.lua.
--
-- Quarantine does not change the log. The mark states the problem. `:waiting` lists the runs removed from the queue.

function calls.quarantine()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  local marks = request.log .. ':marks'
  for _, run in ipairs(open_runs()) do
    redis.call('RPUSH', request.log .. ':waiting', run)
    redis.call('LREM', request.queue, 0, request.name .. '/' .. run)
  end
  if redis.call('HEXISTS', marks, 'unreadable') == 0 then redis.call('HSET', marks, 'unreadable', request.problem) end
  notify(request.cluster)
  return {seq = 0}
end

-- Put the runs back into the queue. If the log is still unreadable, the controller quarantines it again.
function calls.restore()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  if redis.call('HDEL', request.log .. ':marks', 'unreadable') == 0 then return {readable = true} end
  local deleting = redis.call('SISMEMBER', request.deleting, request.name) == 1
  for _, run in ipairs(redis.call('LRANGE', request.log .. ':waiting', 0, -1)) do
    request.entry = request.name .. '/' .. run
    if not deleting then enqueue() end
  end
  redis.call('DEL', request.log .. ':waiting')
  notify(request.cluster)
  return {seq = 0}
end
