-- Calls of kvs_api.logs.segment_store: the older part of a log leaves the database once it is in a file. Goes on from cluster_log.lua.
--
-- `:segments` is a list of what is in files, Segment as JSON, oldest first; `:snapshots` of folds, newest first.

-- A task that has ended is in the log. Whoever names an attempt at it is refused from then on, as by its state before; one
-- that is to be done once more is assigned with the number that the log tells (`assign` in steps.lua).
local function forget_tasks()
  for _, ended in ipairs(request.tasks) do
    local fields = redis.call('HMGET', ended.key, 'state', 'attempt')
    local is_over = fields[1] == 'committed' or fields[1] == 'failed' or fields[1] == 'revoked'
    if is_over and tonumber(fields[2]) == ended.attempt then redis.call('UNLINK', ended.key) end
  end
end

-- A note is repeated by who has not seen it yet: by then, who leads has.
local function forget_notes(log, last)
  local notes = redis.call('HGETALL', log .. ':notes')
  for i = 1, #notes, 2 do
    if tonumber(notes[i + 1]) <= last then redis.call('HDEL', log .. ':notes', notes[i]) end
  end
end

-- Whether the experiment is the one that was meant: its name may have been given to another one since.
local function is_meant()
  if not request.experiment then return true end
  local record = redis.call('GET', request.experiment)
  return record and cjson.decode(record).created == request.created
end

-- In one step: the file is known, and what is in it is gone. Asked for twice, the second one finds another floor.
function calls.cut()
  if not is_meant() then return {missing = true} end
  if floor_of(request.log) ~= request.after or newest(request.log) <= request.last then return {moved = false} end
  redis.call('RPUSH', request.log .. ':segments', request.segment)
  redis.call('XTRIM', request.log, 'MINID', string.format('%d-0', request.last + 1))
  forget_tasks()
  forget_notes(request.log, request.last)
  if request.live then redis.call('XTRIM', request.live, 'MINID', string.format('%d-0', request.live_from)) end
  return {moved = true}
end

-- Two are kept: who has asked for the older one may still read it. Returns the files that nobody reads any more.
function calls.snapshot()
  if not is_meant() then return {missing = true} end
  local list = request.log .. ':snapshots'
  redis.call('LPUSH', list, request.snapshot)
  local old = redis.call('LRANGE', list, 2, -1)
  redis.call('LTRIM', list, 0, 1)
  return {old = old}
end
