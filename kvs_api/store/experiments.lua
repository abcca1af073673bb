-- Changes to a whole experiment: events from clients, and deletion. Called by kvs_api.store.store; follows steps.lua.

local function open_runs()
  local found = {}
  for _, entry in ipairs(redis.call('LRANGE', request.queue, 0, -1)) do
    local name, run = string.match(entry, '^(.*)/(.*)$')
    if name == request.name then found[#found + 1] = run end
  end
  return found
end

-- True if the controller works on a run of the experiment, or will soon because the run is near the head of the queue.
local function is_worked_on()
  local leader = redis.call('HMGET', request.leader, 'open_runs', 'attended')
  for _, run in ipairs(leader[2] and cjson.decode(leader[2]).runs or {}) do
    if run.experiment == request.name then return true end
  end
  for _, entry in ipairs(redis.call('LRANGE', request.queue, 0, tonumber(leader[1] or '1') - 1)) do
    if string.match(entry, '^(.*)/') == request.name then return true end
  end
  return false
end

local function enqueue()
  if redis.call('LPOS', request.queue, request.entry) then return end
  redis.call('RPUSH', request.queue, request.entry)
end

-- Checks for each kind of event. A check returns nil to append the event, or the answer to send instead.
local checks = {}

function checks.RunRequested()
  local known = redis.call('HGET', request.log .. ':runs', request.run)
  if not known then return nil end
  local seq, hash = string.match(known, '^(%d+):(.*)$')
  if hash == request.hash then return {seq = tonumber(seq)} end
  return {conflict = true}
end

function checks.LocatorsChanged()
  if request.after < newest(request.log) or #open_runs() > 0 then return {moved = true} end
  return nil
end

function checks.DeletionRequested()
  local known = redis.call('HGET', request.log .. ':marks', 'deletion')
  if known then return {seq = tonumber(known)} end
  local open = open_runs()
  if #open == 0 then return nil end
  -- A caller that cannot read the log cannot stop its runs: remove waiting runs from the queue.
  if not request.unread or is_worked_on() then return {open = open} end
  for _, run in ipairs(open) do redis.call('LREM', request.queue, 0, request.name .. '/' .. run) end
  return nil
end

-- Events allowed for an experiment with an unreadable log.
local OF_EXPERIMENT = {DeletionRequested = true, ExperimentArchived = true}

local REMEMBERED = 1000

-- Events that may reopen an ended run. If the run stays ended, the controller removes it from the queue.
local REOPENS = {
  RunResumed = true, ModelResumed = true, ModelRetried = true, ModelsAdded = true, ModelExtended = true,
}

-- Effects of each kind of event, applied after the append.
local effects = {}

function effects.RunRequested(seq)
  redis.call('HSET', request.log .. ':runs', request.run, seq .. ':' .. request.hash)
  enqueue()
end

function effects.DeletionRequested(seq)
  redis.call('HSET', request.log .. ':marks', 'deletion', seq, 'by', request.by)
  redis.call('SADD', request.deleting, request.name)
end

function effects.LocatorsChanged()
  redis.call('SET', request.experiment, request.record)
end

function effects.ExperimentArchived()
  redis.call('HSET', request.log .. ':marks', 'archived', request.is_archived and '1' or '')
end

-- Remember the call's idempotency key. A count limits the keys, because the script has no reliable time for an expiry.
local function remember(seq)
  redis.call('HSET', request.calls, request.once, seq)
  if redis.call('RPUSH', request.calls .. ':order', request.once) > REMEMBERED then
    redis.call('HDEL', request.calls, redis.call('LPOP', request.calls .. ':order'))
  end
end

-- Return the quota that the event would exceed, or nil.
local function exceeded_quota(opens)
  if not opens and request.models == 0 or redis.call('EXISTS', request.quotas.key) == 0 then return nil end
  local account = account_of(request.experiment)
  if not account then return nil end
  local demand = {models = request.models, run_models = 0, unlimited = request.unlimited}
  demand.opens_run = opens and not redis.call('LPOS', request.queue, request.entry)
  if request.models > 0 then
    demand.run_models = tonumber(redis.call('HGET', request.log .. ':models', request.run) or '0')
  end
  return over_quota(request.quotas, account, demand, request.queue, wall)
end

function calls.usages()
  local used = {}
  local function usage_of(account)
    used[account] = used[account] or {open_runs = 0, worker_hours = 0}
    return used[account]
  end
  for account, open in pairs(open_by_account(request.queue, request.quotas.experiments)) do
    usage_of(account).open_runs = open
  end
  for _, account in ipairs(spenders(request.quotas)) do
    usage_of(account).worker_hours = spent_hours(request.quotas.hours, account, wall)
  end
  local bytes = redis.call('HGETALL', request.quotas.bytes .. ':accounts')
  for place = 1, #bytes, 2 do usage_of(bytes[place]).bytes = tonumber(bytes[place + 1]) end
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
  local known = request.once and redis.call('HGET', request.calls, request.once)
  if known then return {seq = tonumber(known)} end
  local is_request = request.kind == 'RunRequested'
  if request.run and not is_request and redis.call('HEXISTS', request.log .. ':runs', request.run) == 0 then
    return {unknown = true}
  end
  local answer = checks[request.kind] and checks[request.kind]()
  if answer then return answer end
  local unreadable = redis.call('HGET', request.log .. ':marks', 'unreadable')
  if unreadable and not OF_EXPERIMENT[request.kind] then return {unreadable = unreadable} end
  local begins = is_request or REOPENS[request.kind] or request.kind == 'LocatorsChanged'
  if begins and redis.call('SISMEMBER', request.deleting, request.name) == 1 then return {deleting = true} end
  local over = request.quotas and exceeded_quota(is_request or REOPENS[request.kind])
  if over then return {over = over} end
  local seq = append(request.log, request.event)
  if request.quotas and request.models > 0 then
    redis.call('HINCRBY', request.log .. ':models', request.run, request.models)
  end
  if effects[request.kind] then effects[request.kind](seq) end
  if REOPENS[request.kind] then enqueue() end
  if request.once then remember(seq) end
  notify(request.cluster)
  return {seq = seq}
end

-- Return the reason not to delete the experiment, or nil.
local function deletion_refusal()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  if redis.call('SISMEMBER', request.deleting, request.name) == 0 then return {unasked = true} end
  return nil
end

-- Delete some of the experiment's tasks. Each call checks again, because a new experiment may have the name by then.
function calls.erase_tasks()
  local answer = deletion_refusal()
  if answer then return answer end
  -- Tasks of an unreadable experiment may still be open; free their devices.
  for _, key in ipairs(request.tasks) do
    local task = task_of(key)
    if task.worker then leave(request.worker .. task.worker, task, key) end
  end
  redis.call('UNLINK', unpack(request.tasks))
  return {seq = 0}
end

-- Delete everything except tasks; `erase_tasks` has deleted them.
function calls.erase()
  local answer = deletion_refusal()
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
    request.live, request.live .. ':seq', request.calls, request.calls .. ':order')
  redis.call('XADD', request.audit, 'MAXLEN', '~', 100000, '*', 't', wall, 'b', by, 'w', request.what)
  notify(request.cluster)
  return {seq = 0}
end
