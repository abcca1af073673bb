-- All changes of state, each atomic with the event that tells of it. Called by kvs_api/store.py and crew.py only.
--
-- One script in four files, joined in this order by kvs_api/database.py: this one (tasks: what the controller decides and
-- workers report), experiments.lua (what clients append; the end of an experiment), quarantine.lua (experiments that cannot
-- be read), crew.lua (registrations, the lease).
--
-- ARGV[1] is the JSON of one request. Events and task bodies travel inside it as opaque strings, because cjson would turn
-- empty lists into objects and large numbers into floats.
--
--   {call = "decide", experiment, log, after, term, leader, steps = [...]}
--   {call = "report", worker, incarnation, lease_ms, free, running, leaving, record?, usage?, history, steps = [...],
--    live = [...], live_id, recent, reclaim, cluster}; the live points themselves are ARGV[2] and on, task by task
--   {call = "append", experiment, log, name, kind, event, said, once?, run?, entry?, hash?, by?, unread?, after?, record?, queue,
--    deleting, cluster}
--   {call = "erase_tasks", experiment, name, term, leader, deleting, tasks = [...]}
--   {call = "erase", experiment, experiments, name, log, live, said, term, leader, dataset, deleting, reclaim, audit,
--    what, cluster}
--   {call = "quarantine", experiment, name, log, leader, term, problem, queue, cluster}
--   {call = "restore", experiment, name, log, queue, deleting, cluster}
--   {call = "register", worker, workers, name, inbox, recent, incarnation, record, cluster}
--   {call = "trim", worker, inbox, incarnation, after}
--   {call = "remove", worker, workers, name, inbox, recent, history, incarnation?, cluster}
--   {call = "size", size, workers, record?, answers, cluster}
--   {call = "lead", leader, holder, ttl_ms}
--   {call = "join", workers, worker, leader}
--
-- Every request but `join` also has `clock`, the key of the store's clock, and `at`, what the process that asks counts.
--
-- States of a task: assigned -> running -> committed | failed | revoked; the last three may be assigned again with the
-- next attempt number. A step names the attempt it belongs to; any other attempt is refused.
--
-- Every call may come twice: a client that got no answer cannot know whether the first one was applied.

local request = cjson.decode(ARGV[1])

-- Two clocks, in milliseconds. `wall` is the machine's: it may be set, and is written into logs for people to read.
-- `now` is the store's: only elapsed time moves it, and everything that ends by time ends by it. See kvs_api/clock.py.
local machine = redis.call('TIME')
local wall = machine[1] * 1000 + math.floor(machine[2] / 1000)
local now = tonumber(redis.call('GET', request.clock) or '0')
if request.at and request.at > now then
  now = request.at
  redis.call('SET', request.clock, string.format('%d', now))
end

-- When something of an experiment happened, for people. Within an experiment it never goes back: whoever reads the log
-- may take the order of times for the order of events.
local function stamp(log)
  local newest = tonumber(redis.call('GET', log .. ':time') or '0')
  if wall <= newest then return newest end
  redis.call('SET', log .. ':time', wall)
  return wall
end

local function append(log, event)
  local seq = redis.call('INCR', log .. ':seq')
  redis.call('XADD', log, seq .. '-0', 't', stamp(log), 'e', event)
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

local function newest(log) return tonumber(redis.call('GET', log .. ':seq') or '0') end

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
  -- A worker that was removed, or is another process by now, has nothing to give back, and nobody would read it.
  if task.incarnation and redis.call('HGET', step.worker_key, 'incarnation') == task.incarnation then
    post(step.inbox, step.entry, '')
  end
  append(step.log, step.event)
  return done()
end

-- A data set that a run uses is nobody's to remove, whatever was said of it before.
local function use(step)
  redis.call('SADD', step.log .. ':datasets', step.dataset)
  redis.call('SADD', step.dataset_key, step.name)
  if redis.call('SREM', step.reclaim, step.dataset) == 1 then redis.call('INCR', step.reclaim .. ':seq') end
end

function apply.note(step)
  -- A note changes no task that could tell a repetition. The caller has not seen its own note yet: it is one.
  local id = redis.sha1hex(step.event)
  local known = tonumber(redis.call('HGET', step.log .. ':notes', id) or '0')
  if known > request.after then return already() end
  if step.ended and request.newest > request.after then
    return refused('event ' .. request.newest .. ' was not seen: somebody may wish that the run goes on')
  end
  redis.call('HSET', step.log .. ':notes', id, append(step.log, step.event))
  if step.dataset then use(step) end
  if step.ended then
    redis.call('LREM', step.queue, 0, step.ended)
    ring(step.cluster)
  end
  return done()
end

function apply.dequeue(step)
  if request.newest > request.after then
    return refused('event ' .. request.newest .. ' was not seen: it may have opened the run')
  end
  if redis.call('LREM', step.queue, 0, step.entry) == 0 then return already() end
  ring(step.cluster)
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

local function keep_live()
  local first = 2
  for _, part in ipairs(request.live) do
    local task = task_of(part.key)
    -- A superseded attempt's points would be duplicates of its successor's.
    if task.state == 'running' and task.attempt == part.attempt and task.incarnation == request.incarnation then
      local before = redis.call('INCRBY', part.log .. ':seq', part.count) - part.count
      local time = stamp(part.events)
      for i = 1, part.count do
        redis.call('XADD', part.log, string.format('%d-0', before + i), 't', time, 'e', ARGV[first + i - 1])
      end
    end
    first = first + part.count
  end
end

local SAMPLE_MS = 30 * 1000 - 500 -- a report every two seconds rarely comes at a full half minute
local DAY = 24 * 3600 * 1000 / SAMPLE_MS

local function keep_usage()
  redis.call('HSET', request.worker, 'usage', request.usage)
  local sampled = tonumber(redis.call('HGET', request.worker, 'sampled') or '0')
  if now - sampled < SAMPLE_MS then return end
  redis.call('HSET', request.worker, 'sampled', now)
  redis.call('XADD', request.history, 'MAXLEN', '~', math.ceil(DAY), '*', 'u', request.usage)
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
  request.newest = newest(request.log)
  return {outcomes = apply_all(request.steps)}
end

function calls.report()
  if redis.call('HGET', request.worker, 'incarnation') ~= request.incarnation then return {current = false} end
  redis.call('HSET', request.worker, 'reported', now, 'free', request.free, 'running', request.running)
  if request.leaving ~= '' and redis.call('HGET', request.worker, 'leaving') ~= request.leaving then
    redis.call('HSET', request.worker, 'leaving', request.leaving)
    ring(request.cluster)
  end
  if not is_repeated() then keep_live() end
  if request.record then redis.call('HSET', request.worker, 'record', request.record) end
  if request.usage then keep_usage() end
  local reclaim = tonumber(redis.call('GET', request.reclaim .. ':seq') or '0')
  return {current = true, outcomes = apply_all(request.steps), reclaim = reclaim}
end

-- Calls of kvs_api.store that change an experiment as a whole: a client's events, and its end. Goes on from steps.lua.

local function open_runs()
  local found = {}
  for _, entry in ipairs(redis.call('LRANGE', request.queue, 0, -1)) do
    local name, run = string.match(entry, '^(.*)/(.*)$')
    if name == request.name then found[#found + 1] = run end
  end
  return found
end

local function enqueue()
  if redis.call('LPOS', request.queue, request.entry) then return end
  redis.call('RPUSH', request.queue, request.entry)
end

-- By kind of event, before it is appended: an answer in place of it, or nil.
local before = {}

function before.RunRequested()
  local known = redis.call('HGET', request.log .. ':runs', request.run)
  if not known then return nil end
  local seq, hash = string.match(known, '^(%d+):(.*)$')
  if hash == request.hash then return {seq = tonumber(seq)} end
  return {conflict = true}
end

function before.LocatorsChanged()
  if request.after ~= newest(request.log) or #open_runs() > 0 then return {moved = true} end
  return nil
end

function before.DeletionRequested()
  local known = redis.call('HGET', request.log .. ':marks', 'deletion')
  if known then return {seq = tonumber(known)} end
  local open = open_runs()
  if #open == 0 then return nil end
  -- Who cannot read the log cannot stop a run of it. One that waits is not worked on: it is taken off the queue.
  local first = redis.call('LINDEX', request.queue, 0)
  for _, run in ipairs(open) do
    if not request.unread or first == request.name .. '/' .. run then return {open = open} end
  end
  for _, run in ipairs(open) do redis.call('LREM', request.queue, 0, request.name .. '/' .. run) end
  return nil
end

-- May be said of an experiment whose log cannot be read.
local OF_EXPERIMENT = {DeletionRequested = true, ExperimentArchived = true}

local REMEMBERED = 1000

-- Of a run that has ended: it is open again, or the controller finds that it is not and takes it off the queue.
local REOPENS = {RunResumed = true, ModelResumed = true, ModelRetried = true}

-- By kind of event, once it is in the log.
local after = {}

function after.RunRequested(seq)
  redis.call('HSET', request.log .. ':runs', request.run, seq .. ':' .. request.hash)
  enqueue()
end

function after.DeletionRequested(seq)
  redis.call('HSET', request.log .. ':marks', 'deletion', seq, 'by', request.by)
  redis.call('SADD', request.deleting, request.name)
end

function after.LocatorsChanged()
  redis.call('SET', request.experiment, request.record)
end

function after.ExperimentArchived()
  redis.call('HSET', request.log .. ':marks', 'archived', request.is_archived and '1' or '')
end

-- By number, not by time: so many calls later nobody tries this one again.
local function remember(seq)
  redis.call('HSET', request.said, request.once, seq)
  if redis.call('RPUSH', request.said .. ':order', request.once) > REMEMBERED then
    redis.call('HDEL', request.said, redis.call('LPOP', request.said .. ':order'))
  end
end

function calls.append()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  local said = request.once and redis.call('HGET', request.said, request.once)
  if said then return {seq = tonumber(said)} end
  local is_request = request.kind == 'RunRequested'
  if request.run and not is_request and redis.call('HEXISTS', request.log .. ':runs', request.run) == 0 then
    return {unknown = true}
  end
  local answer = before[request.kind] and before[request.kind]()
  if answer then return answer end
  local unreadable = redis.call('HGET', request.log .. ':marks', 'unreadable')
  if unreadable and not OF_EXPERIMENT[request.kind] then return {unreadable = unreadable} end
  local begins = is_request or REOPENS[request.kind] or request.kind == 'LocatorsChanged'
  if begins and redis.call('SISMEMBER', request.deleting, request.name) == 1 then return {deleting = true} end
  local seq = append(request.log, request.event)
  if after[request.kind] then after[request.kind](seq) end
  if REOPENS[request.kind] then enqueue() end
  if request.once then remember(seq) end
  ring(request.cluster)
  return {seq = seq}
end

-- Who may erase an experiment: an answer in place of it, or nil.
local function is_spared()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  if redis.call('SISMEMBER', request.deleting, request.name) == 0 then return {unasked = true} end
  local term = tonumber(redis.call('HGET', request.leader, 'term') or '0')
  if term ~= request.term then return {stale = term} end
  return nil
end

-- Some of the experiment's tasks. Checked each time: another leader may have given the name away since the last slice.
function calls.erase_tasks()
  local answer = is_spared()
  if answer then return answer end
  redis.call('UNLINK', unpack(request.tasks))
  return {seq = 0}
end

-- The rest. The tasks are gone by now: they are many, and removed before, in slices.
function calls.erase()
  local answer = is_spared()
  if answer then return answer end
  local by = redis.call('HGET', request.log .. ':marks', 'by')
  redis.call('SREM', request.deleting, request.name)
  for _, dataset in ipairs(redis.call('SMEMBERS', request.log .. ':datasets')) do
    redis.call('SREM', request.dataset .. dataset, request.name)
    if redis.call('EXISTS', request.dataset .. dataset) == 0 then
      redis.call('SADD', request.reclaim, dataset)
      redis.call('INCR', request.reclaim .. ':seq')
    end
  end
  redis.call('ZREM', request.experiments, request.name)
  redis.call('UNLINK', request.experiment, request.log, request.log .. ':seq', request.log .. ':runs',
    request.log .. ':notes', request.log .. ':marks', request.log .. ':datasets', request.log .. ':time',
    request.log .. ':waiting',
    request.live, request.live .. ':seq', request.said, request.said .. ':order')
  redis.call('XADD', request.audit, 'MAXLEN', '~', 1000, '*', 't', wall, 'b', by, 'w', request.what)
  ring(request.cluster)
  return {seq = 0}
end

-- Calls of kvs_api.quarantine: experiments whose log or record cannot be read. Goes on from experiments.lua.
--
-- Nothing of the log is touched: the mark says what cannot be read, and keeps the runs that were in the queue.

function calls.quarantine()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  local term = tonumber(redis.call('HGET', request.leader, 'term') or '0')
  if term ~= request.term then return {stale = term} end
  local marks = request.log .. ':marks'
  for _, run in ipairs(open_runs()) do
    redis.call('RPUSH', request.log .. ':waiting', run)
    redis.call('LREM', request.queue, 0, request.name .. '/' .. run)
  end
  if redis.call('HEXISTS', marks, 'unreadable') == 0 then redis.call('HSET', marks, 'unreadable', request.problem) end
  ring(request.cluster)
  return {seq = 0}
end

-- The runs that waited are in the queue again. Should the log still not be readable, the controller finds that out.
function calls.restore()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  if redis.call('HDEL', request.log .. ':marks', 'unreadable') == 0 then return {readable = true} end
  local deleting = redis.call('SISMEMBER', request.deleting, request.name) == 1
  for _, run in ipairs(redis.call('LRANGE', request.log .. ':waiting', 0, -1)) do
    request.entry = request.name .. '/' .. run
    if not deleting then enqueue() end
  end
  redis.call('DEL', request.log .. ':waiting')
  ring(request.cluster)
  return {seq = 0}
end

-- Calls of kvs_api.crew, and the controller's lease. Goes on from steps.lua; the last part of the script.

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

-- What its owner has read. Another incarnation's cursor is of another inbox.
function calls.trim()
  if redis.call('HGET', request.worker, 'incarnation') ~= request.incarnation then return {current = false} end
  redis.call('XTRIM', request.inbox, 'MINID', string.format('%d-0', request.after + 1))
  return {current = true}
end

function calls.remove()
  local known = redis.call('HGET', request.worker, 'incarnation')
  if not known then return {missing = true} end
  if request.incarnation and request.incarnation ~= known then return {current = known} end
  redis.call('SREM', request.workers, request.name)
  redis.call('DEL', request.worker, request.inbox, request.inbox .. ':seq', request.recent, request.history)
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

-- A process of kvs_api begins to count: the store's clock, from which it goes on.
function calls.join()
  if redis.call('EXISTS', request.clock) == 1 then return {clock = now} end
  -- The first one ever. What an older version left was counted by the machine's clock, perhaps before that was set back:
  -- a lease is as long as before if the clock begins no earlier than the newest report.
  now = wall
  for _, name in ipairs(redis.call('SMEMBERS', request.workers)) do
    now = math.max(now, tonumber(redis.call('HGET', request.worker .. name, 'reported') or '0'))
  end
  -- Whoever led asks again in a moment, or somebody else may.
  if redis.call('EXISTS', request.leader) == 1 then redis.call('HSET', request.leader, 'until', 0) end
  redis.call('SET', request.clock, string.format('%d', now))
  return {clock = now}
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

