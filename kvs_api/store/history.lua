-- Tables of bounded length. Called by kvs_api.store.history; follows registry.lua.
--
-- `:seq` counts the changes of a table. `:used` orders its rows by last change, to drop the oldest. `:history` of a log
-- is the number of the newest event that the table includes.

function calls.count_history()
  if redis.call('EXISTS', request.experiment) == 0 then return {missing = true} end
  local upto = tonumber(redis.call('GET', request.log .. ':history') or '0')
  if upto ~= request.after then return {upto = upto, counted = false} end
  local seq = tonumber(redis.call('GET', request.table .. ':seq') or '0')
  if seq ~= request.seq then return {changed = true} end
  for _, each in ipairs(request.rows) do
    redis.call('HSET', request.table, each.key, each.row)
    redis.call('ZADD', request.table .. ':used', seq + 1, each.key)
  end
  redis.call('INCR', request.table .. ':seq')
  local beyond = redis.call('ZCARD', request.table .. ':used') - request.most
  if beyond > 0 then
    local oldest = redis.call('ZPOPMIN', request.table .. ':used', beyond)
    for at = 1, #oldest, 2 do redis.call('HDEL', request.table, oldest[at]) end
  end
  redis.call('SET', request.log .. ':history', string.format('%d', request.upto))
  return {upto = request.upto, counted = true}
end

function calls.forget_history()
  local forgotten = redis.call('HLEN', request.table)
  redis.call('UNLINK', request.table, request.table .. ':used')
  redis.call('INCR', request.table .. ':seq')
  return {forgotten = forgotten}
end
