-- All changes of state, each atomic with the event that tells of it. Called by kvs_api/store/store.py and workers.py only.
--
-- One script in ten files, joined by kvs_api/store/database.py in its order: occupancy.lua (who has which device), quotas.lua
-- (what projects use), this one (tasks: what the controller decides and workers report), experiments.lua (what clients append; the end of an
-- experiment), quarantine.lua (experiments that cannot be read), cluster_log.lua (the cluster's log), segments.lua
-- (what leaves logs for files), registry.lua (registered models), history.lua (what runs have shown), workers.lua
-- (registrations, the lease).
--
-- ARGV[1] is the JSON of one request. Events and task bodies travel inside it as opaque strings, because cjson would turn
-- empty lists into objects and large numbers into floats.
--
--   {call = "decide", experiment, log, after, term, steps = [...], hours?}
--   {call = "usages", queue, quotas}
--   {call = "note_bytes", bytes, experiments, measured = [{name, bytes}]}
--   {call = "report", worker, incarnation, lease_ms, free, running, leaving, record?, usage?, history, steps = [...], hours?,
--    live = [...], live_id, recent, reclaim, cluster}; the live points themselves are ARGV[2] and on, task by task
--   {call = "append", experiment, log, name, kind, event, said, once?, run?, entry?, hash?, by?, unread?, after?, record?, queue,
--    deleting, cluster, quotas?, models?}
--   {call = "erase_tasks", experiment, name, term, deleting, worker, tasks = [...]}
--   {call = "erase", experiment, experiments, name, log, live, said, term, dataset, deleting, reclaim, audit,
--    what, cluster, bytes}
--   {call = "quarantine", experiment, name, log, term, problem, queue, cluster}
--   {call = "restore", experiment, name, log, queue, deleting, cluster}
--   {call = "reserve", logs = [{experiment, log}]}
--   {call = "cluster_log", after, term, events = [{event, worker, incarnation}]}
--   {call = "cut", experiment?, created?, log, term, after, last, segment, tasks = [{key, attempt}], live?, live_from?}
--   {call = "snapshot", experiment?, created?, log, term, snapshot}
--   {call = "register", worker, workers, name, inbox, recent, incarnation, record, devices, cluster}
--   {call = "ask_stacks", key, attempt, worker, worker_key, inbox, question, kept_s, entry}
--   {call = "trim", worker, inbox, incarnation, after}
--   {call = "remove", worker, workers, name, inbox, recent, history, health, incarnation?, cluster}
--   {call = "health", health, after, term?, worker, name, record?, incident?, inbox, entry?, cluster}
--   {call = "size", size, workers, record?, answers, cluster}
--   {call = "put", key, record, kept_s?}
--   {call = "lead", holder, process, is_start, ttl_ms, open_runs, attended?}
--   {call = "join", workers, worker}
--
-- Every request also has `clock`, the key of the store's clock, `cluster_log`, that of the cluster's log, and `news`, the channel
-- that wakes who waits for a stream; `leader`, the key of the controller's lease; perhaps `fence`, the controller's term that
-- the request names in a header; and but for `join` `at`, what the process that asks counts. A call whose `term` or
-- `fence` is not that of the controller that leads changes nothing.
--
-- States of a task: assigned -> running -> committed | failed | revoked; the last three may be assigned again with the
-- next attempt number. A step names the attempt it belongs to; any other attempt is refused.
--
-- Every call may come twice: a client that got no answer cannot know whether the first one was applied.

local request = cjson.decode(ARGV[1])

-- Two clocks, in milliseconds. `wall` is the machine's: it may be set, and is written into logs for people to read.
-- `now` is the store's: only elapsed time moves it, and everything that ends by time ends by it. See kvs_api/store/clock.py.
local machine = redis.call('TIME')
local wall = machine[1] * 1000 + math.floor(machine[2] / 1000)
local now = tonumber(redis.call('GET', request.clock) or '0')
if request.at and request.at > now then
  now = request.at
  redis.call('SET', request.clock, string.format('%d', now))
end

-- Wake who waits for a stream that was appended to: once, they read after this call. See kvs_api/store/news.py. What was
-- written stays written if the user may not publish: an error here would leave half of a step.
local published = {}
local function wake(stream)
  if published[stream] then return end
  published[stream] = true
  redis.pcall('PUBLISH', request.news, stream)
end

-- When something of an experiment happened, for people. It never goes back, neither in a log nor from one to another: the
-- cluster's events are read among those of each experiment, and who reads may take the order of times for that of events.
local function stamp(log)
  local times = redis.call('MGET', log .. ':time', request.cluster_log .. ':time')
  local newest = math.max(tonumber(times[1] or '0'), tonumber(times[2] or '0'))
  if wall <= newest then return newest end
  redis.call('MSET', log .. ':time', wall, request.cluster_log .. ':time', wall)
  return wall
end

-- Numbers of the experiment for the cluster's events that have none in it yet: they are read there, behind what it has.
-- Returns how many events the cluster's log has. Whoever appends or reads reserves them first, so a number that a reader
-- was given is never that of another event.
local function reserve(log)
  local counts = redis.call('MGET', request.cluster_log .. ':seq', log .. ':cluster')
  local cluster, known = tonumber(counts[1] or '0'), tonumber(counts[2] or '0')
  if cluster > known then
    redis.call('INCRBY', log .. ':seq', cluster - known)
    redis.call('SET', log .. ':cluster', cluster)
  end
  return cluster
end

-- An event's number counts the experiment's events and those of the cluster before it, which are read in between: see
-- kvs_api/logs/cluster_log.py.
local function append(log, event)
  local cluster = reserve(log)
  local seq = redis.call('INCR', log .. ':seq')
  if cluster == 0 then
    redis.call('XADD', log, seq .. '-0', 't', stamp(log), 'e', event)
  else
    redis.call('XADD', log, seq .. '-0', 't', stamp(log), 'c', cluster, 'e', event)
  end
  -- The newest event that no worker reported. A decision that was made without it is out of date.
  if request.call ~= 'report' then redis.call('SET', log .. ':decided', seq) end
  wake(log)
  return seq
end

local function notify(cluster)
  local seq = redis.call('INCR', cluster .. ':seq')
  redis.call('XADD', cluster, 'MAXLEN', '~', 1000, seq .. '-0', 'e', '1')
  wake(cluster)
end

local function post(inbox, entry, body)
  local seq = redis.call('INCR', inbox .. ':seq')
  redis.call('XADD', inbox, seq .. '-0', 'e', entry, 'b', body)
  wake(inbox)
end

-- Of the events that are in the log itself: `:seq` counts those of the cluster, too.
local function newest(log)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  return last[1] and tonumber(string.match(last[1][1], '^%d+')) or 0
end

-- The last number of a log that is in a file.
local function floor_of(log)
  local last = redis.call('LINDEX', log .. ':segments', -1)
  return last and cjson.decode(last).last or 0
end

local function done() return {outcome = 'done', reason = ''} end
local function already() return {outcome = 'already', reason = ''} end
local function refused(reason) return {outcome = 'refused', reason = reason} end

local function task_of(key)
  local fields = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'incarnation', 'lease_until', 'devices', 'others')
  return {
    state = fields[1] or 'new',
    attempt = tonumber(fields[2] or '0'),
    worker = fields[3],
    incarnation = fields[4],
    lease_until = tonumber(fields[5] or '0'),
    devices = fields[6] or nil,
    -- Of a gang: the workers beside the one that leads, each with the keys and devices that `assign` named.
    others = fields[7] and cjson.decode(fields[7]) or {},
  }
end

-- The devices of an attempt are free again, at all workers that have it; `worker` is the key of the one that leads.
local function leave(worker, task, key)
  vacate(worker, task.devices, key)
  for _, other in ipairs(task.others) do vacate(other.worker_key, other.devices, key) end
end

local function describe(task)
  return 'attempt ' .. task.attempt .. ' is ' .. task.state .. (task.worker and (' at ' .. task.worker) or '')
end

-- Why an attempt cannot be given to a worker; nil if it can.
local function unfit(place, depth)
  if redis.call('HGET', place.worker_key, 'incarnation') ~= place.incarnation then
    return place.worker .. ' registered anew'
  end
  local present = redis.call('HGET', request.cluster_log .. ':workers', place.worker)
  if present and present ~= place.incarnation then
    return "the cluster's log does not say that " .. place.worker .. ' is there'
  end
  return fullness(place.worker_key, place.worker, place.devices, depth)
end

-- Tell a worker that it has lost an attempt. One that was removed, or is another process by now, has nothing to give
-- back, and nobody would read it.
local function call_off(worker_key, inbox, incarnation, entry)
  if incarnation and redis.call('HGET', worker_key, 'incarnation') == incarnation then post(inbox, entry, '') end
end

local apply = {}

-- Why a decision is out of date; nil if it is not. Reports of workers do not count: they come all the time, and what they
-- change is compared task by task.
local function unseen()
  if request.decided <= request.after then return nil end
  return 'event ' .. request.decided .. ' was not seen: the decision may not fit it'
end

-- Why the model that a task trains cannot be given away; nil if it can. `:sub_epochs` has the newest sub-epoch of each model.
local function busy(step)
  local open = step.model and redis.call('HGET', step.log .. ':sub_epochs', step.model)
  if not open or open == step.key then return nil end
  local other = task_of(open)
  if other.state ~= 'assigned' and other.state ~= 'running' then return nil end
  return step.model .. ' is being trained: ' .. describe(other) .. ' of ' .. open
end

function apply.assign(step)
  local task = task_of(step.key)
  if task.state == 'assigned' and task.attempt == step.attempt and task.incarnation == step.incarnation then
    return already()
  end
  local outdated = unseen() or busy(step)
  if outdated then return refused(outdated) end
  -- Of a task that ended long ago nothing is kept but what the log says: for who has read that.
  local floor = task.state == 'new' and floor_of(step.log) or 0
  local is_forgotten = floor > 0 and request.after >= floor
  if floor > request.after then return refused('events up to ' .. floor .. ' were not seen: they tell of the task') end
  local is_next = is_forgotten or step.attempt == task.attempt + 1
  if task.state == 'assigned' or task.state == 'running' or not is_next then return refused(describe(task)) end
  local problem = unfit(step, step.depth)
  for _, other in ipairs(step.others) do problem = problem or unfit(other, step.depth) end
  if problem then return refused(problem) end
  redis.call('HSET', step.key, 'state', 'assigned', 'attempt', step.attempt, 'worker', step.worker,
    'incarnation', step.incarnation, 'lease_until', 0, 'devices', step.devices)
  if #step.others > 0 then
    redis.call('HSET', step.key, 'others', cjson.encode(step.others))
  else
    redis.call('HDEL', step.key, 'others')
  end
  if step.model then redis.call('HSET', step.log .. ':sub_epochs', step.model, step.key) end
  occupy(step.worker_key, step.devices, step.key)
  post(step.inbox, step.entry, step.body)
  for _, other in ipairs(step.others) do
    occupy(other.worker_key, other.devices, step.key)
    post(other.inbox, other.entry, step.body)
  end
  append(step.log, step.event)
  return done()
end

function apply.revoke(step)
  local task = task_of(step.key)
  if task.state == 'revoked' and task.attempt == step.attempt then return already() end
  local is_open = task.state == 'assigned' or task.state == 'running'
  if task.attempt ~= step.attempt or task.worker ~= step.worker or not is_open then return refused(describe(task)) end
  if task.state == 'running' and not step.force and task.lease_until > now then
    return refused('the lease of ' .. task.worker .. ' runs for another ' .. (task.lease_until - now) .. ' ms')
  end
  redis.call('HSET', step.key, 'state', 'revoked')
  spend(request.hours, step.key, step.log, task, now, wall)
  leave(step.worker_key, task, step.key)
  call_off(step.worker_key, step.inbox, task.incarnation, step.entry)
  for _, other in ipairs(task.others) do
    call_off(other.worker_key, other.inbox, other.incarnation, step.entry)
  end
  append(step.log, step.event)
  return done()
end

function apply.ask(step)
  local task = task_of(step.key)
  if task.attempt ~= step.attempt or task.worker ~= step.worker or task.state ~= 'running' then
    return refused(describe(task))
  end
  if tonumber(redis.call('HGET', step.key, 'asked') or '0') == step.attempt then return already() end
  if redis.call('HGET', step.worker_key, 'incarnation') ~= task.incarnation then
    return refused(step.worker .. ' registered anew')
  end
  redis.call('HSET', step.key, 'asked', step.attempt)
  post(step.inbox, step.entry, '')
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
  local floor = floor_of(step.log)
  if floor > request.after then return refused('events up to ' .. floor .. ' were not seen: it may be among them') end
  local outdated = unseen()
  if outdated then return refused(outdated) end
  if step.ended and request.newest > request.after then
    return refused('event ' .. request.newest .. ' was not seen: somebody may have resumed the run')
  end
  redis.call('HSET', step.log .. ':notes', id, append(step.log, step.event))
  if step.dataset then use(step) end
  if step.ended then
    redis.call('LREM', step.queue, 0, step.ended)
    notify(step.cluster)
  end
  return done()
end

function apply.dequeue(step)
  if request.newest > request.after then
    return refused('event ' .. request.newest .. ' was not seen: it may have opened the run')
  end
  if redis.call('LREM', step.queue, 0, step.entry) == 0 then return already() end
  notify(step.cluster)
  return done()
end

-- A worker's step needs the attempt it names, held by this very incarnation.
local function held(step, wanted)
  local task = task_of(step.key)
  if task.attempt == step.attempt and task.incarnation == request.incarnation then
    if wanted[task.state] then return nil, task end
    if task.state == step.becomes then return already() end
  end
  return refused(describe(task))
end

function apply.start(step)
  local problem, task = held(step, {assigned = true})
  if problem then return problem end
  local ahead = predecessor(request.worker, task.devices, step.key)
  for _, other in ipairs(task.others) do
    ahead = ahead or predecessor(other.worker_key, other.devices, step.key)
  end
  if ahead then return refused(ahead) end
  redis.call('HSET', step.key, 'state', 'running', 'lease_until', now + request.lease_ms)
  if request.hours then redis.call('HSET', step.key, 'began', now) end
  append(step.log, step.event)
  return done()
end

function apply.renew(step)
  local problem = held(step, {running = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'lease_until', now + request.lease_ms)
  return done()
end

-- Savepoints of an attempt come one after the other, so that an older one was told of before.
function apply.save(step)
  local problem = held(step, {running = true})
  if problem then return problem end
  local attempt, batch = unpack(redis.call('HMGET', step.key, 'saved_attempt', 'saved_batch'))
  if tonumber(attempt or '0') == step.attempt and tonumber(batch) >= step.batch then return already() end
  redis.call('HSET', step.key, 'lease_until', now + request.lease_ms, 'saved_attempt', step.attempt,
    'saved_batch', step.batch)
  append(step.log, step.event)
  return done()
end

function apply.commit(step)
  local problem, task = held(step, {running = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'state', 'committed')
  spend(request.hours, step.key, step.log, task, now, wall)
  leave(request.worker, task, step.key)
  append(step.log, step.event)
  return done()
end

function apply.fail(step)
  local problem, task = held(step, {assigned = true, running = true})
  if problem then return problem end
  redis.call('HSET', step.key, 'state', 'failed')
  spend(request.hours, step.key, step.log, task, now, wall)
  leave(request.worker, task, step.key)
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
      wake(part.log)
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
  request.newest = newest(request.log)
  request.decided = tonumber(redis.call('GET', request.log .. ':decided') or '0')
  return {outcomes = apply_all(request.steps)}
end

function calls.report()
  if redis.call('HGET', request.worker, 'incarnation') ~= request.incarnation then return {current = false} end
  redis.call('HSET', request.worker, 'reported', now, 'free', request.free, 'running', request.running)
  if request.leaving ~= '' and redis.call('HGET', request.worker, 'leaving') ~= request.leaving then
    redis.call('HSET', request.worker, 'leaving', request.leaving)
    notify(request.cluster)
  end
  if not is_repeated() then keep_live() end
  if request.record then redis.call('HSET', request.worker, 'record', request.record) end
  if request.usage then keep_usage() end
  local reclaim = tonumber(redis.call('GET', request.reclaim .. ':seq') or '0')
  return {current = true, outcomes = apply_all(request.steps), reclaim = reclaim}
end
