-- All changes of state, each atomic with the event that tells of it. Called by kvs_api/store.py only.
--
-- ARGV[1] is the JSON of one request. Events and task bodies travel inside it as opaque strings, because cjson would turn
-- empty lists into objects and large numbers into floats.
--
--   {call = "decide", experiment, after, term, leader, steps = [...]}
--   {call = "report", worker, incarnation, lease_ms, free, running, leaving, record?, steps = [...], live = [...], live_id, recent,
--    cluster}
--   {call = "append", log, runs, run, hash, event, queue, entry, cluster}
--   {call = "register", worker, workers, name, inbox, recent, incarnation, record, cluster}
--   {call = "remove", worker, workers, name, inbox, recent, incarnation?, cluster}
--   {call = "size", size, workers, record?, answers, cluster}
--   {call = "lead", leader, holder, ttl_ms}
--
-- States of a task: assigned -> running -> committed | failed | revoked; the last three may be assigned again with the
-- next attempt number. A step names the attempt it belongs to; any other attempt is refused.
--
-- Every call may come twice: a client that got no answer cannot know whether the first one was applied.

local request = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function append(log, event)
  local seq = redis.call('INCR', log .. ':seq')
  redis.call('XADD', log, seq .. '-0', 't', now, 'e', event)
  return seq
end

local function ring(cluster)
  local seq = redis.call('INCR', cluster .. ':seq')
  redis.call('XADD', cluster, 'MAXLEN', '~', 1000, seq .. '-0', 'e', '1')
end

local function post(inbox, entry, body)
  local seq = redis.call('INCR', inbox .. ':seq')
  redis.call('XADD', inbox, seq .. '-0', 'e', entry, 'b', body)
end

local function done() return {outcome = 'done', reason = ''} end
local function already() return {outcome = 'already', reason = ''} end
local function refused(reason) return {outcome = 'refused', reason = reason} end

local function task_of(key)
  local fields = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'incarnation', 'lease_until')
  return {
    state = fields[1] or 'new',
    attempt = tonumber(fields[2] or '0'),
    worker = fields[3],
    incarnation = fields[4],
    lease_until = tonumber(fields[5] or '0'),
  }
end

local function describe(task)
  return 'attempt ' .. task.attempt .. ' is ' .. task.state .. (task.worker and (' at ' .. task.worker) or '')
end

local apply = {}

function apply.assign(step)
  local task = task_of(step.key)
  if task.state == 'assigned' and task.attempt == step.attempt and task.incarnation == step.incarnation then
    return already()
  end
  if task.state == 'assigned' or task.state == 'running' or step.attempt ~= task.attempt + 1 then
    return refused(describe(task))
  end
  if redis.call('HGET', step.worker_key, 'incarnation') ~= step.incarnation then
    return refused(step.worker .. ' registered anew')
  end
  redis.call('HSET', step.key, 'state', 'assigned', 'attempt', step.attempt, 'worker', step.worker,
    'incarnation', step.incarnation, 'lease_until', 0)
  post(step.inbox, step.entry, step.body)
  append(step.log, step.event)
  return done()
end

function apply.revoke(step)
  local task = task_of(step.key)
  if task.state == 'revoked' and task.attempt == step.attempt then return already() end
  if task.attempt ~= step.attempt or (task.state ~= 'assigned' and task.state ~= 'running') then
    return refused(describe(task))
  end
  if task.state == 'running' and not step.force and task.lease_until > now then
    return refused('the lease of ' .. task.worker .. ' runs for another ' .. (task.lease_until - now) .. ' ms')
  end
  redis.call('HSET', step.key, 'state', 'revoked')
  post(step.inbox, step.entry, '')
  append(step.log, step.event)
  return done()
end

function apply.note(step)
  -- A note changes no task that could tell a repetition. The caller has not seen its own note yet: it is one.
  local id = redis.sha1hex(step.event)
  local known = tonumber(redis.call('HGET', step.log .. ':notes', id) or '0')
  if known > request.after then return already() end
  redis.call('HSET', step.log .. ':notes', id, append(step.log, step.event))
  if step.ended then
    redis.call('LREM', step.queue, 0, step.ended)
    redis.call('HSET', step.log .. ':ended', step.run, now)
    ring(step.cluster)
  end
  return done()
end

-- A worker's step needs the attempt it names, held by this very incarnation.
local function held(step, wanted)
  local task = task_of(step.key)
  if task.attempt == step.attempt and task.incarnation == request.incarnation then
    if wanted[task.state] then return nil end
    if task.state == step.becomes then return already() end
  end
  return refused(describe(task))
end

function apply.start(step)
  local problem = held(step, {assigned = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'state', 'running', 'lease_until', now + request.lease_ms)
  append(step.log, step.event)
  return done()
end

function apply.renew(step)
  local problem = held(step, {running = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'lease_until', now + request.lease_ms)
  return done()
end

function apply.commit(step)
  local problem = held(step, {running = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'state', 'committed')
  append(step.log, step.event)
  return done()
end

function apply.fail(step)
  local problem = held(step, {assigned = true, running = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'state', 'failed')
  append(step.log, step.event)
  return done()
end

local function apply_all(steps)
  local outcomes = {}
  for i, step in ipairs(steps) do outcomes[i] = apply[step.op](step) end
  return outcomes
end

-- Points have no number of their own: those of the latest reports are known by their hash.
local function is_repeated()
  if request.live_id == '' then return false end
  if redis.call('LPOS', request.recent, request.live_id) then return true end
  redis.call('LPUSH', request.recent, request.live_id)
  redis.call('LTRIM', request.recent, 0, 7)
  return false
end

local calls = {}

function calls.decide()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  local term = tonumber(redis.call('HGET', request.leader, 'term') or '0')
  if term ~= request.term then return {stale = term} end
  return {outcomes = apply_all(request.steps)}
end

function calls.report()
  if redis.call('HGET', request.worker, 'incarnation') ~= request.incarnation then return {current = false} end
  redis.call('HSET', request.worker, 'reported', now, 'free', request.free, 'running', request.running)
  if request.leaving ~= '' and redis.call('HGET', request.worker, 'leaving') ~= request.leaving then
    redis.call('HSET', request.worker, 'leaving', request.leaving)
    ring(request.cluster)
  end
  if is_repeated() then request.live = {} end
  if request.record then redis.call('HSET', request.worker, 'record', request.record) end
  for _, point in ipairs(request.live) do
    local task = task_of(point.key)
    -- A superseded attempt's points would be duplicates of its successor's.
    if task.state == 'running' and task.attempt == point.attempt and task.incarnation == request.incarnation then
      append(point.log, point.event)
    end
  end
  return {current = true, outcomes = apply_all(request.steps)}
end

function calls.append()
  if request.about and redis.call('HEXISTS', request.runs, request.about) == 0 then return {unknown = true} end
  if request.run then
    local known = redis.call('HGET', request.runs, request.run)
    if known then
      local seq, hash = string.match(known, '^(%d+):(.*)$')
      if hash == request.hash then return {seq = tonumber(seq)} end
      return {conflict = true}
    end
  end
  local seq = append(request.log, request.event)
  if request.run then
    redis.call('HSET', request.runs, request.run, seq .. ':' .. request.hash)
    redis.call('RPUSH', request.queue, request.entry)
  end
  ring(request.cluster)
  return {seq = seq}
end

function calls.register()
  redis.call('SADD', request.workers, request.name)
  if redis.call('HGET', request.worker, 'incarnation') == request.incarnation then
    -- Repeated: the inbox may hold tasks by now, which nobody would assign a second time.
    redis.call('HSET', request.worker, 'record', request.record, 'reported', now)
    return {seq = 0}
  end
  redis.call('HSET', request.worker, 'record', request.record, 'incarnation', request.incarnation, 'reported', now,
    'free', '', 'running', '', 'leaving', '')
  redis.call('DEL', request.inbox, request.inbox .. ':seq', request.recent)
  ring(request.cluster)
  return {seq = 0}
end

function calls.remove()
  local known = redis.call('HGET', request.worker, 'incarnation')
  if not known then return {missing = true} end
  if request.incarnation and request.incarnation ~= known then return {current = known} end
  redis.call('SREM', request.workers, request.name)
  redis.call('DEL', request.worker, request.inbox, request.inbox .. ':seq', request.recent)
  ring(request.cluster)
  return {seq = 0}
end

-- A wish is replaced by a newer one at any time; answering it, or taking it away, must not hit that newer one.
function calls.size()
  local known = redis.call('GET', request.size)
  local asked = known and cjson.decode(known).workers
  if request.answers and asked ~= request.workers then return {outdated = true} end
  if not request.record then
    redis.call('DEL', request.size)
    return {seq = 0}
  end
  redis.call('SET', request.size, request.record)
  if not request.answers then ring(request.cluster) end
  return {seq = 0}
end

function calls.lead()
  local fields = redis.call('HMGET', request.leader, 'holder', 'term', 'until')
  local holder, term, until_ms = fields[1], tonumber(fields[2] or '0'), tonumber(fields[3] or '0')
  if holder ~= request.holder then
    if holder and until_ms > now then return {term = 0, holder = holder} end
    term = term + 1
  end
  redis.call('HSET', request.leader, 'holder', request.holder, 'term', term, 'until', now + request.ttl_ms)
  return {term = term, holder = request.holder}
end

return cjson.encode(calls[request.call]())
