-- Lists of the open attempts on each device of a worker. First part of the script; see steps.lua.
--
-- Each device has a list of its open attempts, oldest first. One more list holds attempts without a device. A task has at
-- most one open attempt, so the lists hold task keys. An attempt may start when it is the first in all its lists. A new
-- incarnation of the worker starts with empty lists. The tasks of a fused group follow each other in a list and count as
-- one attempt: each may start when the group is the first.
--
-- `worker` is the key of the worker's registration, `devices` a list of device numbers such as `0,2`, or ``.

local NO_DEVICE = 'none'

local function lists(worker, devices)
  if devices == '' then return {{device = NO_DEVICE, key = worker .. ':open:' .. NO_DEVICE}} end
  local found = {}
  for device in string.gmatch(devices, '%d+') do
    found[#found + 1] = {device = device, key = worker .. ':open:' .. device}
  end
  return found
end

local function device_label(device)
  return device == NO_DEVICE and 'the slot for tasks without a device' or 'device ' .. device
end

-- A worker without devices, such as an ETL worker, counts as one device.
local function num_devices(worker) return tonumber(redis.call('HGET', worker, 'devices') or '1') end

-- Return the number of open attempts in a list.
local function num_open(list)
  local count, previous = 0, nil
  for _, task in ipairs(redis.call('LRANGE', list, 0, -1)) do
    local group = redis.call('HGET', task, 'group')
    if not group or group ~= previous then count = count + 1 end
    previous = group
  end
  return count
end

-- Return the reason why the devices cannot take another attempt, or nil.
local function fullness(worker, name, devices, depth)
  for _, list in ipairs(lists(worker, devices)) do
    local number = tonumber(list.device)
    if number and number >= num_devices(worker) then
      return name .. ' has no device ' .. list.device .. ': it has ' .. num_devices(worker) .. ', numbered from 0'
    end
    local open = redis.call('LLEN', list.key)
    if open >= depth then open = num_open(list.key) end
    if open >= depth then
      return device_label(list.device) .. ' of ' .. name .. ' has ' .. open .. ' open attempts already'
    end
  end
  return nil
end

local function occupy(worker, devices, task)
  for _, list in ipairs(lists(worker, devices)) do redis.call('RPUSH', list.key, task) end
end

-- Remove a task from the lists of its devices. Does nothing if it is not listed. `devices` is nil for a deleted task.
local function vacate(worker, devices, task)
  if not devices then return end
  for _, list in ipairs(lists(worker, devices)) do redis.call('LREM', list.key, 0, task) end
end

-- Count one task less in the listed tasks of a fused group.
local function shrink(worker, devices, group)
  for _, task in ipairs(redis.call('LRANGE', lists(worker, devices)[1].key, 0, -1)) do
    if redis.call('HGET', task, 'group') == group then redis.call('HINCRBY', task, 'group_size', -1) end
  end
end

-- Return the reason why the task cannot start yet, or nil.
local function predecessor(worker, devices, task)
  if not devices then return nil end
  local group = redis.call('HGET', task, 'group')
  for _, list in ipairs(lists(worker, devices)) do
    local first = redis.call('LINDEX', list.key, 0)
    local is_ahead = first and first ~= task
    if is_ahead and not (group and redis.call('HGET', first, 'group') == group) then
      local experiment, name = string.match(first, 'exp:(.-):task:(.*)$')
      return name .. ' of ' .. experiment .. ' was assigned to ' .. device_label(list.device) .. ' earlier and has not ended'
    end
  end
  return nil
end

local function vacate_all(worker)
  for device = 0, num_devices(worker) - 1 do redis.call('DEL', worker .. ':open:' .. device) end
  redis.call('DEL', worker .. ':open:' .. NO_DEVICE)
end
