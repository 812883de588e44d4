-- One exchange with a shared limit, as smartbatch.core.limits.shared_record.exchange: the same steps in the
-- same order. KEYS[1]: the record. ARGV: what is asked, as JSON, and the salt by which the record is named.
-- Returns what is granted, as JSON.
local GONE, WAITING, SLICES, ADVANCE, MONEY_SLICES = 15, 2, 4, 1, 2
local SLOT_SECONDS, CLOCK_STEP, QUIET, SLOTS_AHEAD, SLACK, NO_BOUND, MEASURED = 0.5, 2, 8, 1, 0.001, 1e15, 0.8
local KEPT, REMEMBERED, SETTLED, LASTING = 604800000, 604800, 60, 3600

if redis.call('HGET', 'smartbatch:shared', 'salt') ~= ARGV[2] then
    return redis.error_reply('EMPTIED it lost what it kept: its records have other names')
end
local time = redis.call('TIME')
-- numbers are stored with 14 digits: seconds since 2023 keep their microseconds
local now = tonumber(time[1]) - 1700000000 + tonumber(time[2]) / 1e6
local ask = cjson.decode(ARGV[1])
local stored = redis.call('GET', KEYS[1])
local record = stored and cjson.decode(stored) or {
    at = 0, generation = 0, caps = {0, 0, 0, 0}, rates = {0, 0, 0, 0},
    learned_caps = {0, 0, 0, 0}, learned_rates = {0, 0, 0, 0}, levels = {0, 0, 0, 0},
    granted = {0, 0, 0, 0}, cool_until = 0, spaced = 0, found = 0, next_slot = 0, outage = 0, opened = 0,
    members = {}, accounts = {},
}
local members, accounts = record.members, record.accounts
local account = accounts[ask.member]
if account and ask.number <= account.number then
    return redis.error_reply('LATE it was given up, and another was made since')
end
local names = {}  -- sorted, so that sums are the same everywhere
for name in pairs(members) do names[#names + 1] = name end
table.sort(names)

local function each(visit)
    for _, name in ipairs(names) do
        if members[name] then visit(members[name], name) end
    end
end

local function held_by_others(d)
    local sum = 0
    each(function(member) sum = sum + member.held[d] end)
    return sum
end

if now < record.at - CLOCK_STEP then
    local back = record.at - now
    record.at, record.cool_until, record.next_slot = now, record.cool_until - back, record.next_slot - back
    each(function(member)
        member.seen = member.seen - back
        if member.since > 0 then member.since = member.since - back end
    end)
    for _, one in pairs(accounts) do one.seen = one.seen - back end
end
now = math.max(now, record.at)
local elapsed = now - record.at
record.at = now
local mine = members[ask.member]
members[ask.member] = nil

local back = {0, 0, 0, 0}
each(function(member, name)
    if now - member.seen > (ask.lasting == 1 and LASTING or GONE) then
        for d = 1, 4 do back[d] = back[d] + member.held[d] end
        members[name] = nil
    end
end)
for name, one in pairs(accounts) do
    if now - one.seen > (one.held > 0 and REMEMBERED or SETTLED) then accounts[name] = nil end
end

if not mine and not next(members) then record.outage = 0 end
if elapsed > QUIET and (mine or next(members)) then elapsed = 0 end

for d = 1, 4 do
    local more = elapsed * record.rates[d] + (ask.money == 1 and 0 or back[d])
    local cap, rate = math.huge, math.huge
    local function told(one)
        if one.caps[d] > 0 then
            cap, rate = math.min(cap, one.caps[d]), math.min(rate, one.rates[d])
        end
    end
    each(told)
    told(ask)
    if ask.learned_caps[d] ~= 0 then
        record.learned_caps[d] = math.max(0, ask.learned_caps[d])
        record.learned_rates[d] = ask.learned_rates[d]
    end
    if cap == math.huge and (ask.money == 1 or ask.lasting == 1) then
        cap, rate = record.caps[d], record.rates[d]
    elseif cap == math.huge and record.learned_caps[d] > 0 then
        cap, rate = record.learned_caps[d], record.learned_rates[d]
    end
    if cap == math.huge then
        record.caps[d], record.levels[d] = 0, record.levels[d] + more
    else
        if record.caps[d] == 0 and record.rates[d] == 0 then
            record.levels[d] = cap
        elseif ask.money == 1 then
            record.levels[d] = record.levels[d] + cap - record.caps[d]
        end
        record.caps[d], record.rates[d] = cap, rate
        local full = math.max(cap - ask.kept[d] - held_by_others(d), math.min(record.levels[d], cap))
        record.levels[d] = math.min(full, record.levels[d] + more)
        if ask.lasting == 1 then record.levels[d] = cap - ask.kept[d] - held_by_others(d) end
        if cap > 0 then
            local given = mine and ask.returned[d] or math.min(ask.returned[d], 0)
            if d == 1 and account then given = account.drawn - ask.drawn + ask.given - account.given end
            local level = record.levels[d] + given
            local bound = ask.at_most[d]
            if bound < NO_BOUND then
                if next(members) then
                    level = math.min(level, bound - held_by_others(d))
                else
                    level = bound - ask.kept[d]
                end
                if ask.at_least[d] > 0 then
                    level = math.max(level, ask.at_least[d] - (record.granted[d] - ask['then'][d]))
                end
            end
            record.levels[d] = math.min(cap, level)
        end
    end
end

if ask.generation ~= record.generation then
    if ask.lowered == 1 and (record.spaced == 0 or ask.spaced < MEASURED * record.spaced) then
        record.spaced, record.found = ask.spaced, ask.found
        record.opened, record.generation = 0, record.generation + 1
    end
else
    local outage = ask.outage == 0 and record.outage or math.max(ask.outage, 0)
    local news = ask.cooled > 0 or ask.lowered == 1 or outage ~= record.outage
    if ask.cooled > 0 then record.cool_until = math.max(record.cool_until, now + ask.cooled) end
    if ask.lowered == 1 then
        record.spaced, record.found, record.opened = ask.spaced, ask.found, 0
    elseif ask.spaced < 0 then
        record.spaced = 0
    elseif ask.spaced > record.spaced and record.spaced > 0 then
        record.spaced, record.found = ask.spaced, ask.found
    end
    record.outage = outage
    if news then record.generation = record.generation + 1 end
end

record.opened = math.max(record.opened, ask.opened)

local granted, slots, slots_in, wait = {0, 0, 0, 0}, 0, 0, 0
local count = 1
each(function() count = count + 1 end)
local since = mine and mine.since > 0 and mine.since or now
local wants = math.max(ask.slots, unpack(ask.wanted)) > 0 and ask.leaving == 0
if wants then
    local alone = count == 1 and ADVANCE or 0
    local ahead = {0, 0, 0, 0}
    each(function(member)
        local first = member.urgent > ask.urgent or (member.urgent == ask.urgent and member.since < since)
        if member.since > 0 and now - member.seen <= WAITING and first then
            for d = 1, 4 do
                local least = member.least[d]
                if ask.money ~= 1 then
                    ahead[d] = ahead[d] + math.min(least, record.caps[d])
                elseif least <= record.levels[d] then
                    ahead[d] = ahead[d] + least
                end
            end
        end
    end)
    wait = math.max(0, record.cool_until - now)
    for d = 1, 4 do
        if record.caps[d] > 0 then
            local rate = record.rates[d]
            local least = ask.money == 1 and ask.least[d] or math.min(ask.least[d], record.caps[d])
            local lacking = least + ahead[d] - record.levels[d] - alone * rate
            if lacking > (ask.money == 1 and 1e-10 or SLACK) then wait = math.max(wait, rate > 0 and lacking / rate or GONE) end
        end
    end
    local start = math.max(record.next_slot, now)
    local spaced = record.spaced > 0 and ask.slots > 0
    if spaced and start - now > SLOTS_AHEAD then wait = math.max(wait, start - now - SLOTS_AHEAD) end
    if wait == 0 then
        for d = 1, 4 do
            if record.caps[d] > 0 then
                local most = record.caps[d] / (SLICES * count)
                if ask.money == 1 then most = record.levels[d] / (MONEY_SLICES * count) end
                local left = record.levels[d] - ahead[d] + alone * record.rates[d]
                local amount = math.max(ask.least[d], math.min(ask.wanted[d], most, left))
                if d == 1 and ask.money == 0 then amount = math.max(ask.least[d], math.floor(amount)) end
                granted[d] = amount
                record.levels[d] = record.levels[d] - amount
                record.granted[d] = record.granted[d] + amount
            end
        end
        if spaced then
            local most = math.floor(SLOT_SECONDS * record.spaced / count)
            slots = math.max(1, math.min(ask.slots, most))
            record.next_slot = start + slots / record.spaced
        end
        slots_in = start - now
    end
end
if ask.leaving == 0 then
    local held = {0, 0, 0, 0}
    for d = 1, 4 do held[d] = ask.kept[d] + granted[d] end
    members[ask.member] = {
        seen = now, held = held, caps = ask.caps, rates = ask.rates,
        least = wait > 0 and ask.least or {0, 0, 0, 0}, urgent = ask.urgent,
        since = wait > 0 and since or 0, accepted = ask.accepted,
    }
end
if ask.money == 1 then
    accounts[ask.member] = {
        seen = now, number = ask.number, drawn = ask.drawn + granted[1], given = ask.given,
        held = ask.kept[1] + granted[1],
    }
end

local accepted, then_ = 0, {}
each(function(member, name) if name ~= ask.member then accepted = accepted + member.accepted end end)
for d = 1, 4 do
    local held = held_by_others(d)
    if not mine and members[ask.member] then held = held + members[ask.member].held[d] end
    then_[d] = record.granted[d] - held
end
local text = cjson.encode(record)
if ask.money == 1 then
    redis.call('SET', KEYS[1], text)
else
    redis.call('SET', KEYS[1], text, 'PX', KEPT)
end
return cjson.encode({
    members = count, granted = granted, slots = slots, slots_in = slots_in, wait = wait,
    cool = math.max(0, record.cool_until - now), generation = record.generation, caps = record.caps,
    rates = record.rates, left = record.levels, ['then'] = then_, spaced = record.spaced,
    found = record.found, accepted = accepted, outage = record.outage, opened = record.opened,
})
