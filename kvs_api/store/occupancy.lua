-- Which attempts have which device of a worker. Part of the script that begins here; see steps.lua.
--
-- Each device has a list of the open attempts that were given to it, oldest first, and so has the lane of the attempts
-- that take no device. A task has one open attempt at most, so its key stands for it. An attempt may start once it is the
-- first in all of its lists. The lists belong to the worker's present incarnation: another one begins with empty ones.
--
-- `worker` is the key of its registration, `devices` the numbers as a task keeps them, such as `0,2`, or ``.

local NO_DEVICE = 'none'

local function lists(worker, devices)
  if devices == '' then return {{device = NO_DEVICE, key = worker .. ':open:' .. NO_DEVICE}} end
  local found = {}
  for device in string.gmatch(devices, '%d+') do
    found[#found + 1] = {device = device, key = worker .. ':open:' .. device}
  end
  return found
end

local function called(device)
  return device == NO_DEVICE and 'the lane of tasks without a device' or 'device ' .. device
end

-- A worker that names no devices, such as one for ETL alone, has one.
local function num_devices(worker) return tonumber(redis.call('HGET', worker, 'devices') or '1') end

-- Why one more attempt cannot be given to the devices; nil if it can.
local function fullness(worker, name, devices, depth)
  for _, list in ipairs(lists(worker, devices)) do
    local number = tonumber(list.device)
    if number and number >= num_devices(worker) then
      return name .. ' has no device ' .. list.device .. ': it has ' .. num_devices(worker) .. ', numbered from 0'
    end
    local open = redis.call('LLEN', list.key)
    if open >= depth then
      return called(list.device) .. ' of ' .. name .. ' has ' .. open .. ' open attempts already'
    end
  end
  return nil
end

local function occupy(worker, devices, task)
  for _, list in ipairs(lists(worker, devices)) do redis.call('RPUSH', list.key, task) end
end

-- A task that is in none of the lists, as its worker has begun anew, changes nothing. A
-- task whose hash is gone has no devices.
local function vacate(worker, devices, task)
  if not devices then return end
  for _, list in ipairs(lists(worker, devices)) do redis.call('LREM', list.key, 0, task) end
end

-- Why it is not the task's turn; nil if it is.
local function predecessor(worker, devices, task)
  if not devices then return nil end
  for _, list in ipairs(lists(worker, devices)) do
    local first = redis.call('LINDEX', list.key, 0)
    if first and first ~= task then
      local experiment, name = string.match(first, 'exp:(.-):task:(.*)$')
      return name .. ' of ' .. experiment .. ' was given ' .. called(list.device) .. ' before it and has not ended'
    end
  end
  return nil
end

local function vacate_all(worker)
  for device = 0, num_devices(worker) - 1 do redis.call('DEL', worker .. ':open:' .. device) end
  redis.call('DEL', worker .. ':open:' .. NO_DEVICE)
end
