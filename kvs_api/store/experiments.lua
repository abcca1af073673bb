-- Calls of kvs_api.store.store that change an experiment as a whole: a client's events, and its end. Goes on from steps.lua.

local function open_runs()
  local found = {}
  for _, entry in ipairs(redis.call('LRANGE', request.queue, 0, -1)) do
    local name, run = string.match(entry, '^(.*)/(.*)$')
    if name == request.name then found[#found + 1] = run end
  end
  return found
end

-- Whether a run of the experiment is one that the controller works on, or is about to: one of the first in the queue.
local function is_worked_on()
  local told = redis.call('HMGET', request.leader, 'open_runs', 'attended')
  for _, run in ipairs(told[2] and cjson.decode(told[2]).runs or {}) do
    if run.experiment == request.name then return true end
  end
  for _, entry in ipairs(redis.call('LRANGE', request.queue, 0, tonumber(told[1] or '1') - 1)) do
    if string.match(entry, '^(.*)/') == request.name then return true end
  end
  return false
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
  if request.after < newest(request.log) or #open_runs() > 0 then return {moved = true} end
  return nil
end

function before.DeletionRequested()
  local known = redis.call('HGET', request.log .. ':marks', 'deletion')
  if known then return {seq = tonumber(known)} end
  local open = open_runs()
  if #open == 0 then return nil end
  -- Who cannot read the log cannot stop a run of it. One that waits is not worked on: it is taken off the queue.
  if not request.unread or is_worked_on() then return {open = open} end
  for _, run in ipairs(open) do redis.call('LREM', request.queue, 0, request.name .. '/' .. run) end
  return nil
end

-- May be said of an experiment whose log cannot be read.
local OF_EXPERIMENT = {DeletionRequested = true, ExperimentArchived = true}

local REMEMBERED = 1000

-- Of a run that has ended: it is open again, or the controller finds that it is not and takes it off the queue.
local REOPENS = {
  RunResumed = true, ModelResumed = true, ModelRetried = true, ModelsAdded = true, ModelExtended = true,
}

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

-- What the account of the experiment may not have any more, if this event asks for it; or nil.
local function beyond(opens)
  if not opens and request.models == 0 or redis.call('EXISTS', request.quotas.key) == 0 then return nil end
  local account = account_of(request.experiment)
  if not account then return nil end
  local asked = {models = request.models, run_models = 0, unlimited = request.unlimited}
  asked.begins = opens and not redis.call('LPOS', request.queue, request.entry)
  if request.models > 0 then
    asked.run_models = tonumber(redis.call('HGET', request.log .. ':models', request.run) or '0')
  end
  return over_quota(request.quotas, account, asked, request.queue, wall)
end

function calls.usages()
  local used = {}
  local function of(account)
    used[account] = used[account] or {open_runs = 0, worker_hours = 0}
    return used[account]
  end
  for account, open in pairs(open_by_account(request.queue, request.quotas.experiments)) do
    of(account).open_runs = open
  end
  for _, account in ipairs(spenders(request.quotas)) do
    of(account).worker_hours = spent_hours(request.quotas.hours, account, wall)
  end
  local bytes = redis.call('HGETALL', request.quotas.bytes .. ':accounts')
  for place = 1, #bytes, 2 do of(bytes[place]).bytes = tonumber(bytes[place + 1]) end
  return {used = used}
end

function calls.note_bytes()
  for _, each in ipairs(request.measured) do
    note_bytes(request.bytes, each.name, request.experiments .. each.name, each.bytes)
  end
  return {known = redis.call('HKEYS', request.bytes)}
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
  local over = request.quotas and beyond(is_request or REOPENS[request.kind])
  if over then return {over = over} end
  local seq = append(request.log, request.event)
  if request.quotas and request.models > 0 then
    redis.call('HINCRBY', request.log .. ':models', request.run, request.models)
  end
  if after[request.kind] then after[request.kind](seq) end
  if REOPENS[request.kind] then enqueue() end
  if request.once then remember(seq) end
  notify(request.cluster)
  return {seq = seq}
end

-- Who may erase an experiment: an answer in place of it, or nil.
local function is_spared()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  if redis.call('SISMEMBER', request.deleting, request.name) == 0 then return {unasked = true} end
  return nil
end

-- Some of the experiment's tasks. Checked each time: another leader may have given the name away since the last slice.
function calls.erase_tasks()
  local answer = is_spared()
  if answer then return answer end
  -- Of an experiment that cannot be read, some may be open: nobody will end them.
  for _, key in ipairs(request.tasks) do
    local task = task_of(key)
    if task.worker then leave(request.worker .. task.worker, task, key) end
  end
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
  forget_bytes(request.bytes, request.name)
  redis.call('UNLINK', request.experiment, request.log, request.log .. ':seq', request.log .. ':runs',
    request.log .. ':notes', request.log .. ':marks', request.log .. ':datasets', request.log .. ':time',
    request.log .. ':waiting', request.log .. ':models', request.log .. ':cluster',
    request.log .. ':decided', request.log .. ':sub_epochs',
    request.log .. ':segments', request.log .. ':snapshots',
    request.log .. ':history',
    request.live, request.live .. ':seq', request.said, request.said .. ':order')
  redis.call('XADD', request.audit, 'MAXLEN', '~', 100000, '*', 't', wall, 'b', by, 'w', request.what)
  notify(request.cluster)
  return {seq = 0}
end
