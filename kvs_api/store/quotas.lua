-- Usage and quotas of accounts, on clusters with users. Precedes steps.lua, which counts the time of attempts. These
-- functions do not read `request`.

local DAY_MS = 24 * 3600 * 1000
local COUNTED_DAYS = 30

-- Return the experiment's account: its project, else its owner, else nil.
local function account_of(experiment)
  local content = redis.call('GET', experiment)
  local readable, record = pcall(cjson.decode, content or '')
  if not readable or type(record) ~= 'table' then return nil end
  if type(record.project) == 'string' and record.project ~= '' then return 'project:' .. record.project end
  if type(record.owner) == 'string' and record.owner ~= '' then return 'owner:' .. record.owner end
  return nil
end

local function devices_in(listed)
  if not listed or listed == '' or listed == 'none' then return 1 end
  local _, commas = string.gsub(listed, ',', '')
  return commas + 1
end

-- Charge the device time of an ended attempt to its account. `hours.prefix` precedes account names in keys;
-- `hours.accounts` is the set of accounts with hours.
local function spend(hours, key, log, task, now, wall)
  if not hours then return end
  local began = tonumber(redis.call('HGET', key, 'began') or '')
  local account = began and account_of(string.sub(log, 1, -5)) -- without ":log"
  if not account then return end
  redis.call('HDEL', key, 'began')
  local devices = devices_in(task.devices)
  for _, other in ipairs(task.others) do devices = devices + devices_in(other.devices) end
  local day = string.format('%d', math.floor(wall / DAY_MS))
  redis.call('HINCRBYFLOAT', hours.prefix .. account, day, (now - began) * devices / task.group_size)
  redis.call('EXPIRE', hours.prefix .. account, (COUNTED_DAYS + 1) * DAY_MS / 1000)
  redis.call('SADD', hours.accounts, account)
end

-- Return accounts with recorded hours.
local function spenders(quotas)
  local accounts = {}
  for _, account in ipairs(redis.call('SMEMBERS', quotas.accounts)) do
    if redis.call('EXISTS', quotas.hours .. account) == 1 then
      accounts[#accounts + 1] = account
    else
      redis.call('SREM', quotas.accounts, account) -- its hours have expired
    end
  end
  return accounts
end

-- Remove an experiment's bytes from its account.
local function forget_bytes(bytes, name)
  local known = redis.call('HGET', bytes, name)
  if not known then return end
  local number, account = string.match(known, '^(%d+) (.*)$')
  redis.call('HDEL', bytes, name)
  if redis.call('HINCRBY', bytes .. ':accounts', account, '-' .. number) <= 0 then
    redis.call('HDEL', bytes .. ':accounts', account)
  end
end

-- Record an experiment's bytes on volumes: `number`, as digits. `key` is the key of its record.
local function note_bytes(bytes, name, key, number)
  forget_bytes(bytes, name)
  local account = account_of(key)
  if not account or number == '0' then return end
  redis.call('HSET', bytes, name, number .. ' ' .. account)
  redis.call('HINCRBY', bytes .. ':accounts', account, number)
end

local function bytes_of(bytes, account)
  return tonumber(redis.call('HGET', bytes .. ':accounts', account) or '0')
end

local function spent_hours(hours, account, wall)
  local today, days = math.floor(wall / DAY_MS), {}
  for day = 0, COUNTED_DAYS - 1 do days[#days + 1] = string.format('%d', today - day) end
  local sum = 0
  for _, part in ipairs(redis.call('HMGET', hours .. account, unpack(days))) do sum = sum + tonumber(part or '0') end
  return sum / 3600000
end

-- Count open runs by account.
local function open_by_account(queue, experiments)
  local found, known = {}, {}
  for _, entry in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    local name = string.match(entry, '^(.*)/')
    if known[name] == nil then known[name] = account_of(experiments .. name) or false end
    local account = known[name]
    if account then found[account] = (found[account] or 0) + 1 end
  end
  return found
end

-- Return the quota that an account would exceed, or nil. `demand`: {opens_run, models, run_models, unlimited}.
local function over_quota(quotas, account, demand, queue, wall)
  local content = redis.call('HGET', quotas.key, account) or redis.call('HGET', quotas.key, 'default')
  if not content then return nil end
  local quota = cjson.decode(content)
  local function over(what, used, limit) return {account = account, what = what, used = used, limit = limit} end
  if quota.models and demand.unlimited then return over('samples', 0, quota.models) end
  if quota.models and demand.models > 0 and demand.run_models + demand.models > quota.models then
    return over('models', demand.run_models + demand.models, quota.models)
  end
  if not demand.opens_run then return nil end
  if quota.open_runs then
    local open = open_by_account(queue, quotas.experiments)[account] or 0
    if open >= quota.open_runs then return over('open_runs', open, quota.open_runs) end
  end
  if quota.worker_hours then
    local used = spent_hours(quotas.hours, account, wall)
    if used >= quota.worker_hours then return over('worker_hours', used, quota.worker_hours) end
  end
  if quota.bytes then
    local used = bytes_of(quotas.bytes, account)
    if used >= quota.bytes then return over('bytes', used, quota.bytes) end
  end
  return nil
end
