-- Calls that remove a log's older events from the database after a file holds them. Called by
-- kvs_api.logs.segment_store; follows cluster_log.lua.
--
-- `:segments` lists the log's files (Segment, JSON), oldest first; `:snapshots` lists folds (Snapshot, JSON), newest first.

-- Delete tasks that ended in the removed events; the file records their end. Later steps for them are still refused. A
-- repeated task gets its attempt number from the log (`assign` in steps.lua).
local function forget_tasks()
  for _, ended in ipairs(request.tasks) do
    local fields = redis.call('HMGET', ended.key, 'state', 'attempt')
    local is_over = fields[1] == 'committed' or fields[1] == 'failed' or fields[1] == 'revoked'
    if is_over and tonumber(fields[2]) == ended.attempt then redis.call('UNLINK', ended.key) end
  end
end

-- Delete the hashes of removed notes. The leading controller has read these notes, so it does not repeat them.
local function forget_notes(log, last)
  local notes = redis.call('HGETALL', log .. ':notes')
  for i = 1, #notes, 2 do
    if tonumber(notes[i + 1]) <= last then redis.call('HDEL', log .. ':notes', notes[i]) end
  end
end

-- True if the experiment is the requested one. A new experiment may have the name of a deleted one.
local function is_same_experiment()
  if not request.experiment then return true end
  local record = redis.call('GET', request.experiment)
  return record and cjson.decode(record).created == request.created
end

-- List the file and remove its events from the stream, in one step. A repeated call changes nothing.
function calls.cut()
  if not is_same_experiment() then return {missing = true} end
  if floor_of(request.log) ~= request.after or newest(request.log) <= request.last then return {moved = false} end
  redis.call('RPUSH', request.log .. ':segments', request.segment)
  redis.call('XTRIM', request.log, 'MINID', string.format('%d-0', request.last + 1))
  forget_tasks()
  forget_notes(request.log, request.last)
  if request.live then redis.call('XTRIM', request.live, 'MINID', string.format('%d-0', request.live_from)) end
  return {moved = true}
end

-- Add a snapshot and keep the last two, because a reader may still use the older one. Returns the files to delete.
function calls.snapshot()
  if not is_same_experiment() then return {missing = true} end
  local list = request.log .. ':snapshots'
  redis.call('LPUSH', list, request.snapshot)
  local old = redis.call('LRANGE', list, 2, -1)
  redis.call('LTRIM', list, 0, 1)
  return {old = old}
end
