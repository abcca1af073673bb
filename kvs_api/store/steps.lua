-- Changes state and appends the event of the change, atomically.
--
-- One script in ten files, joined by kvs_api/store/database.py in this order: occupancy.lua (attempts on devices),
-- quotas.lua, steps.lua (tasks: steps of the controller and workers), experiments.lua (clients' events, deletion),
-- experiment_quarantine.lua (unreadable ones), cluster_log.lua, segments.lua (files of logs), registry.lua (models),
-- history.lua, workers.lua (registrations, the controller's lease).
--
-- ARGV[1] is a request as JSON. Events and task bodies are opaque strings in it, because cjson turns empty lists into
-- objects and large numbers into floats.
--
--   {call = "decide", experiment, log, after, term, steps = [...], hours?}
--   {call = "usages", queue, quotas}
--   {call = "note_bytes", bytes, experiments, measured = [{name, bytes}]}
--   {call = "report", worker, incarnation, lease_ms, free, running, leaving, record?, usage?, history, steps = [...], hours?,
--    live = [...], live_id, recent, reclaim, cluster}; ARGV[2] and later are the live points, task by task
--   {call = "append", experiment, log, name, kind, event, calls, once?, run?, entry?, hash?, by?, unread?, after?, record?, queue,
--    deleting, cluster, quotas?, models?}
--   {call = "erase_tasks", experiment, name, term, deleting, worker, tasks = [...]}
--   {call = "erase", experiment, experiments, name, log, live, calls, term, dataset, deleting, reclaim, audit,
--    what, cluster, bytes}
--   {call = "quarantine", experiment, name, log, term, problem, queue, cluster}
--   {call = "restore", experiment, name, log, queue, deleting, cluster}
--   {call = "reserve", logs = [{experiment, log}]}
--   {call = "cluster_log", after, term, events = [{event, worker, incarnation}]}
--   {call = "cut", experiment?, created?, log, term, after, last, segment, tasks = [{key, attempt}], live?, live_from?}
--   {call = "snapshot", experiment?, created?, log, term, snapshot}
--   {call = "register", worker, workers, name, inbox, recent, incarnation, record, devices, cluster}
--   {call = "request_stacks", key, attempt, worker, worker_key, inbox, question, kept_s, entry}
--   {call = "trim", worker, inbox, incarnation, after}
--   {call = "remove", worker, workers, name, inbox, recent, history, health, incarnation?, cluster}
--   {call = "health", health, after, term?, worker, name, record?, incident?, inbox, entry?, cluster}
--   {call = "size", size, workers, record?, only_if_pending?, cluster}
--   {call = "put", key, record, kept_s?}
--   {call = "lead", holder, process, is_start, ttl_ms, open_runs, attended?}
--   {call = "join", workers, worker}
--
-- Every request also has `clock` (key of the store's clock), `cluster_log` (key of the cluster log), `news` (channel that
-- wakes readers of streams) and `leader` (key of the controller's lease). All except `join` have `at`, the caller's clock.
-- `fence` is the controller's term from the request's header. A call with an outdated `term` or `fence` changes nothing.
--
-- States of a task: assigned -> running -> committed | failed | revoked. The last three may be assigned again with the
-- next attempt number. A step names its attempt; steps of any other attempt are refused.
--
-- A client may repeat any call. Without an answer, it cannot know whether the script applied the call.

local request = cjson.decode(ARGV[1])

-- Two clocks, in milliseconds. `wall` is the machine's clock; it may be set at any time and only labels events. `now` is
-- the store's clock; it counts elapsed time, and all deadlines use it. See kvs_api/store/clock.py.
local machine = redis.call('TIME')
local wall = machine[1] * 1000 + math.floor(machine[2] / 1000)
local now = tonumber(redis.call('GET', request.clock) or '0')
if request.at and request.at > now then
  now = request.at
  redis.call('SET', request.clock, string.format('%d', now))
end

-- Wake readers of a stream, once per call, because they read after the call (kvs_api/store/news.py). Ignore errors: the
-- Redis user may lack the permission, and an error would leave half of a step.
local published = {}
local function wake(stream)
  if published[stream] then return end
  published[stream] = true
  redis.pcall('PUBLISH', request.news, stream)
end

-- Return the time of an experiment's next event. It never decreases within or across logs, because readers merge cluster
-- events into each experiment's log.
local function stamp(log)
  local times = redis.call('MGET', log .. ':time', request.cluster_log .. ':time')
  local newest = math.max(tonumber(times[1] or '0'), tonumber(times[2] or '0'))
  if wall <= newest then return newest end
  redis.call('MSET', log .. ':time', wall, request.cluster_log .. ':time', wall)
  return wall
end

-- Reserve numbers in an experiment's log for new cluster events; return the number of cluster events. Appends and reads
-- reserve first, so a number that a reader has received stays with its event.
local function reserve(log)
  local counts = redis.call('MGET', request.cluster_log .. ':seq', log .. ':cluster')
  local cluster, known = tonumber(counts[1] or '0'), tonumber(counts[2] or '0')
  if cluster > known then
    redis.call('INCRBY', log .. ':seq', cluster - known)
    redis.call('SET', log .. ':cluster', cluster)
  end
  return cluster
end

-- Append an event. Its number counts the experiment's and the cluster's events up to it (kvs_api/logs/cluster_log.py).
local function append(log, event)
  local cluster = reserve(log)
  local seq = redis.call('INCR', log .. ':seq')
  if cluster == 0 then
    redis.call('XADD', log, seq .. '-0', 't', stamp(log), 'e', event)
  else
    redis.call('XADD', log, seq .. '-0', 't', stamp(log), 'c', cluster, 'e', event)
  end
  -- `:decided` is the newest event that no worker reported. A decision made before it is outdated.
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

-- Return the number of the newest event stored in this log. `:seq` also counts cluster events.
local function newest(log)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  return last[1] and tonumber(string.match(last[1][1], '^%d+')) or 0
end

-- Return the number of the last event in a file; 0 if none.
local function floor_of(log)
  local last = redis.call('LINDEX', log .. ':segments', -1)
  return last and cjson.decode(last).last or 0
end

local function done() return {outcome = 'done', reason = ''} end
local function already() return {outcome = 'already', reason = ''} end
local function refused(reason) return {outcome = 'refused', reason = reason} end

local function task_of(key)
  local fields = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'incarnation', 'lease_until', 'devices', 'others',
    'group_size', 'group')
  return {
    state = fields[1] or 'new',
    attempt = tonumber(fields[2] or '0'),
    worker = fields[3],
    incarnation = fields[4],
    lease_until = tonumber(fields[5] or '0'),
    devices = fields[6] or nil,
    -- The other workers of a gang, each with keys and devices as in `assign`.
    others = fields[7] and cjson.decode(fields[7]) or {},
    group_size = tonumber(fields[8] or '1'),
    group = fields[9] or nil,
  }
end

-- Free the attempt's devices on all its workers. `worker` is the key of the leading worker.
local function leave(worker, task, key)
  vacate(worker, task.devices, key)
  for _, other in ipairs(task.others) do vacate(other.worker_key, other.devices, key) end
  -- It never started: the other tasks of its fused group share the time of the device.
  if task.group and task.state == 'assigned' then shrink(worker, task.devices, task.group) end
end

local function describe(task)
  return 'attempt ' .. task.attempt .. ' is ' .. task.state .. (task.worker and (' at ' .. task.worker) or '')
end

-- Return the reason why a worker cannot take an attempt, or nil.
local function unfit(place, depth)
  if redis.call('HGET', place.worker_key, 'incarnation') ~= place.incarnation then
    return place.worker .. ' has restarted'
  end
  local present = redis.call('HGET', request.cluster_log .. ':workers', place.worker)
  if present and present ~= place.incarnation then
    return place.worker .. ' is not present in the cluster log'
  end
  return fullness(place.worker_key, place.worker, place.devices, depth)
end

-- Notify a worker that it has lost an attempt. Skips workers that were removed or restarted.
local function notify_revoked(worker_key, inbox, incarnation, entry)
  if incarnation and redis.call('HGET', worker_key, 'incarnation') == incarnation then post(inbox, entry, '') end
end

local apply = {}

-- Return the reason why a decision is outdated, or nil. Ignores reports of workers: each step checks its task's state.
local function outdated_reason()
  if request.decided <= request.after then return nil end
  return 'the controller had not read event ' .. request.decided .. ' when it decided'
end

-- Return the reason why a task of an assignment cannot get an attempt, or nil. `:sub_epochs` holds each model's newest
-- sub-epoch.
local function open_reason(log, member)
  local open = member.model and redis.call('HGET', log .. ':sub_epochs', member.model)
  if open and open ~= member.key then
    local other = task_of(open)
    if other.state == 'assigned' or other.state == 'running' then
      return member.model .. ' is being trained: ' .. describe(other) .. ' of ' .. open
    end
  end
  -- A task whose events are in a file has no state here. The caller must have read that file.
  local task = task_of(member.key)
  local floor = task.state == 'new' and floor_of(log) or 0
  if floor > request.after then return 'events up to ' .. floor .. ' were not read; they may be about the task' end
  local is_next = floor > 0 or member.attempt == task.attempt + 1
  if task.state == 'assigned' or task.state == 'running' or not is_next then return describe(task) end
  return nil
end

function apply.assign(step)
  local task = task_of(step.key)
  if task.state == 'assigned' and task.attempt == step.attempt and task.incarnation == step.incarnation then
    return already()
  end
  local problem = outdated_reason()
  for _, member in ipairs(step.tasks) do problem = problem or open_reason(step.log, member) end
  problem = problem or unfit(step, step.depth)
  for _, other in ipairs(step.others) do problem = problem or unfit(other, step.depth) end
  if problem then return refused(problem) end
  for _, member in ipairs(step.tasks) do
    redis.call('HDEL', member.key, 'others', 'group', 'group_size')
    redis.call('HSET', member.key, 'state', 'assigned', 'attempt', member.attempt, 'worker', step.worker,
      'incarnation', step.incarnation, 'lease_until', 0, 'devices', step.devices)
    if #step.others > 0 then redis.call('HSET', member.key, 'others', cjson.encode(step.others)) end
    if step.group then redis.call('HSET', member.key, 'group', step.group, 'group_size', #step.tasks) end
    if member.model then redis.call('HSET', step.log .. ':sub_epochs', member.model, member.key) end
    occupy(step.worker_key, step.devices, member.key)
  end
  post(step.inbox, step.entry, step.body)
  for _, other in ipairs(step.others) do
    occupy(other.worker_key, other.devices, step.key)
    post(other.inbox, other.entry, step.body)
  end
  for _, member in ipairs(step.tasks) do append(step.log, member.event) end
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
  notify_revoked(step.worker_key, step.inbox, task.incarnation, step.entry)
  for _, other in ipairs(task.others) do
    notify_revoked(other.worker_key, other.inbox, other.incarnation, step.entry)
  end
  append(step.log, step.event)
  return done()
end

function apply.preempt(step)
  local task = task_of(step.key)
  if task.attempt ~= step.attempt or task.worker ~= step.worker or task.state ~= 'running' then
    return refused(describe(task))
  end
  if tonumber(redis.call('HGET', step.key, 'preempted') or '0') == step.attempt then return already() end
  if redis.call('HGET', step.worker_key, 'incarnation') ~= task.incarnation then
    return refused(step.worker .. ' has restarted')
  end
  redis.call('HSET', step.key, 'preempted', step.attempt)
  post(step.inbox, step.entry, '')
  append(step.log, step.event)
  return done()
end

-- Record that a run uses a data set, and remove the data set from the reclaim list.
local function use_dataset(step)
  redis.call('SADD', step.log .. ':datasets', step.dataset)
  redis.call('SADD', step.dataset_key, step.name)
  if redis.call('SREM', step.reclaim, step.dataset) == 1 then redis.call('INCR', step.reclaim .. ':seq') end
end

function apply.note(step)
  -- A note changes no task, so its hash detects a repetition. A caller that repeats has not read its own note yet.
  local id = redis.sha1hex(step.event)
  local known = tonumber(redis.call('HGET', step.log .. ':notes', id) or '0')
  if known > request.after then return already() end
  local floor = floor_of(step.log)
  if floor > request.after then return refused('events up to ' .. floor .. ' were not read; the note may be among them') end
  local outdated = outdated_reason()
  if outdated then return refused(outdated) end
  if step.ended and request.newest > request.after then
    return refused('event ' .. request.newest .. ' was not read; it may have resumed the run')
  end
  redis.call('HSET', step.log .. ':notes', id, append(step.log, step.event))
  if step.dataset then use_dataset(step) end
  if step.ended then
    redis.call('LREM', step.queue, 0, step.ended)
    notify(step.cluster)
  end
  return done()
end

function apply.dequeue(step)
  if request.newest > request.after then
    return refused('event ' .. request.newest .. ' was not read; it may have opened the run')
  end
  if redis.call('LREM', step.queue, 0, step.entry) == 0 then return already() end
  notify(step.cluster)
  return done()
end

-- Check that this incarnation of the worker holds the step's attempt. Returns a problem, or nil and the task.
local function held(step, states)
  local task = task_of(step.key)
  if task.attempt == step.attempt and task.incarnation == request.incarnation then
    if states[task.state] then return nil, task end
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

-- An attempt reports its savepoints in order, so an older savepoint is a repetition.
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
    -- Points of a superseded attempt would duplicate its successor's points.
    if task.state == 'running' and task.attempt == part.attempt and task.incarnation == request.incarnation then
      local newest_seq = redis.call('INCRBY', part.log .. ':seq', part.count) - part.count
      local time = stamp(part.events)
      for i = 1, part.count do
        redis.call('XADD', part.log, string.format('%d-0', newest_seq + i), 't', time, 'e', ARGV[first + i - 1])
      end
      wake(part.log)
    end
    first = first + part.count
  end
end

local SAMPLE_MS = 30 * 1000 - 500 -- 30 s less a tolerance: reports come every 2 s
local DAY = 24 * 3600 * 1000 / SAMPLE_MS

local function keep_usage()
  redis.call('HSET', request.worker, 'usage', request.usage)
  local sampled = tonumber(redis.call('HGET', request.worker, 'sampled') or '0')
  if now - sampled < SAMPLE_MS then return end
  redis.call('HSET', request.worker, 'sampled', now)
  redis.call('XADD', request.history, 'MAXLEN', '~', math.ceil(DAY), '*', 'u', request.usage)
end

-- True if a recent report had the same points. Points have no numbers, so the hash of a report identifies it.
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
