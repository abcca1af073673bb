-- Versions and aliases of registered models, one hash per model. Called by kvs_api.store.registry; follows segments.lua.

function calls.register_model()
  local known = redis.call('HGET', request.registered, 'call:' .. request.once)
  if known then return {version = tonumber(known)} end
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  local number = redis.call('HINCRBY', request.registered, 'newest', 1)
  redis.call('HSET', request.registered, 'version:' .. number, request.record, 'call:' .. request.once, number)
  redis.call('SADD', request.registry, request.name)
  redis.call('SADD', request.registering, request.name .. '/' .. number)
  return {version = number}
end

-- Record the outcome of copying a version, once. The call has no effect if the record is no longer `expected`.
function calls.settle_version()
  local field = 'version:' .. request.version
  if redis.call('HGET', request.registered, field) ~= request.expected then return {changed = true} end
  redis.call('HSET', request.registered, field, request.record)
  redis.call('SREM', request.registering, request.name .. '/' .. request.version)
  return {settled = true}
end

function calls.move_alias()
  local field = 'alias:' .. request.alias
  if not request.version then
    if redis.call('HDEL', request.registered, field) == 0 then return {missing = true} end
    return {moved = true}
  end
  if redis.call('HGET', request.registered, 'version:' .. request.version) ~= request.record then return {changed = true} end
  redis.call('HSET', request.registered, field, request.version)
  return {moved = true}
end
