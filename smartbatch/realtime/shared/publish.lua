-- One record of a process, as SqliteBackEnd.publish: the same steps in the same order. KEYS: the records, when
-- each was made, and the sums. ARGV: the process, its record, the sums that it told before, the seconds for
-- which records are kept.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local kept = tonumber(ARGV[4])

local seen = redis.call('HGETALL', KEYS[2])
for i = 1, #seen, 2 do
    if tonumber(seen[i + 1]) < now - kept then
        redis.call('HDEL', KEYS[1], seen[i])
        redis.call('HDEL', KEYS[2], seen[i])
    end
end
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local known = stored and cjson.decode(stored).sums or cjson.decode(ARGV[3])
for name, value in pairs(cjson.decode(ARGV[2]).sums) do
    local more = value - (known[name] or 0)
    if more ~= 0 then redis.call('HINCRBYFLOAT', KEYS[3], name, string.format('%.17g', more)) end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], kept)
redis.call('EXPIRE', KEYS[2], kept)
