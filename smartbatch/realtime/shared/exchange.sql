-- One exchange with a shared limit, as smartbatch.core.limits.shared_record.exchange: the same steps in the
-- same order. {schema} is the schema of the store. Arrays count from 1.
CREATE OR REPLACE FUNCTION {schema}.shared_exchange_v3(record_key text, asked json) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    gone CONSTANT float8 := 15; waiting CONSTANT float8 := 2; slices CONSTANT float8 := 4;
    advance CONSTANT float8 := 1; money_slices CONSTANT float8 := 2; slot_seconds CONSTANT float8 := 0.5;
    clock_step CONSTANT float8 := 2; quiet CONSTANT float8 := 8; slots_ahead CONSTANT float8 := 1;
    slack CONSTANT float8 := 0.001; remembered CONSTANT float8 := 604800; settled CONSTANT float8 := 60;
    lasting CONSTANT float8 := 3600; measured CONSTANT float8 := 0.8;
    no_bound CONSTANT float8 := 1e15; none CONSTANT float8[] := '{{0,0,0,0}}';
    r {schema}.shared_limits%ROWTYPE;
    ask {schema}.shared_ask;
    mine {schema}.shared_members%ROWTYPE;
    other {schema}.shared_members%ROWTYPE;
    account {schema}.shared_accounts%ROWTYPE;
    now_at float8; elapsed float8; step_back float8; since_at float8; others int;
    back float8[] := none; ahead float8[] := none; granted float8[] := none; held_sum float8[] := none;
    told_cap float8; told_rate float8; level float8; lacking float8; amount float8; most float8;
    left_over float8; alone float8; start_at float8; accepted_sum float8 := 0;
    slots float8 := 0; slots_in float8 := 0; wait float8 := 0; known boolean; outage int; d int; has_account boolean;
BEGIN
    ask := json_populate_record(NULL::{schema}.shared_ask, asked);
    INSERT INTO {schema}.shared_limits (key) VALUES (record_key) ON CONFLICT DO NOTHING;
    SELECT * INTO r FROM {schema}.shared_limits WHERE key = record_key FOR UPDATE;
    SELECT * INTO account FROM {schema}.shared_accounts WHERE key = record_key AND member = ask.member;
    has_account := FOUND;
    IF has_account AND ask.number <= account.number THEN
        RAISE EXCEPTION 'the exchange comes late: it was given up, and another was made since';
    END IF;
    now_at := extract(epoch FROM clock_timestamp())::float8;
    IF now_at < r.at - clock_step THEN
        step_back := r.at - now_at;
        r.at := now_at; r.cool_until := r.cool_until - step_back; r.next_slot := r.next_slot - step_back;
        UPDATE {schema}.shared_members SET seen = seen - step_back,
            since = CASE WHEN since > 0 THEN since - step_back ELSE 0 END WHERE key = record_key;
        UPDATE {schema}.shared_accounts SET seen = seen - step_back WHERE key = record_key;
    END IF;
    now_at := greatest(now_at, r.at);
    elapsed := now_at - r.at;
    r.at := now_at;
    DELETE FROM {schema}.shared_members WHERE key = record_key AND member = ask.member RETURNING * INTO mine;
    known := FOUND;
    FOR other IN DELETE FROM {schema}.shared_members
        WHERE key = record_key AND now_at - seen > (CASE WHEN ask.lasting = 1 THEN lasting ELSE gone END)
        RETURNING *
    LOOP
        FOR d IN 1..4 LOOP back[d] := back[d] + other.held[d]; END LOOP;
    END LOOP;
    DELETE FROM {schema}.shared_accounts WHERE key = record_key
        AND now_at - seen > (CASE WHEN held > 0 THEN remembered ELSE settled END);
    SELECT count(*) INTO others FROM {schema}.shared_members WHERE key = record_key;
    IF NOT known AND others = 0 THEN r.outage := 0; END IF;
    IF elapsed > quiet AND (known OR others > 0) THEN elapsed := 0; END IF;
    FOR d IN 1..4 LOOP
        SELECT min(caps[d]), min(rates[d]), coalesce(sum(held[d]), 0) INTO told_cap, told_rate, level
            FROM {schema}.shared_members WHERE key = record_key AND caps[d] > 0;
        SELECT coalesce(sum(held[d]), 0) INTO level FROM {schema}.shared_members WHERE key = record_key;
        held_sum[d] := level;
        IF ask.caps[d] > 0 THEN
            told_cap := least(told_cap, ask.caps[d]);
            told_rate := least(told_rate, ask.rates[d]);
        END IF;
        IF ask.learned_caps[d] <> 0 THEN
            r.learned_caps[d] := greatest(0, ask.learned_caps[d]);
            r.learned_rates[d] := ask.learned_rates[d];
        END IF;
        IF told_cap IS NULL AND (ask.money = 1 OR ask.lasting = 1) THEN
            told_cap := r.caps[d]; told_rate := r.rates[d];
        ELSIF told_cap IS NULL AND r.learned_caps[d] > 0 THEN
            told_cap := r.learned_caps[d]; told_rate := r.learned_rates[d];
        END IF;
        amount := elapsed * r.rates[d] + CASE WHEN ask.money = 1 THEN 0 ELSE back[d] END;
        IF told_cap IS NULL THEN
            r.caps[d] := 0; r.levels[d] := r.levels[d] + amount;
            CONTINUE;
        END IF;
        IF r.caps[d] = 0 AND r.rates[d] = 0 THEN
            r.levels[d] := told_cap;
        ELSIF ask.money = 1 THEN
            r.levels[d] := r.levels[d] + told_cap - r.caps[d];
        END IF;
        r.caps[d] := told_cap;
        r.rates[d] := told_rate;
        level := greatest(told_cap - ask.kept[d] - held_sum[d], least(r.levels[d], told_cap));
        r.levels[d] := least(level, r.levels[d] + amount);
        IF ask.lasting = 1 THEN r.levels[d] := told_cap - ask.kept[d] - held_sum[d]; END IF;
        IF told_cap > 0 THEN
            amount := CASE WHEN known THEN ask.returned[d] ELSE least(ask.returned[d], 0) END;
            IF d = 1 AND has_account THEN
                amount := account.drawn - ask.drawn + ask.given - account.given;
            END IF;
            level := r.levels[d] + amount;
            IF ask.at_most[d] < no_bound THEN
                IF others > 0 THEN
                    level := least(level, ask.at_most[d] - held_sum[d]);
                ELSE
                    level := ask.at_most[d] - ask.kept[d];
                END IF;
                IF ask.at_least[d] > 0 THEN
                    level := greatest(level, ask.at_least[d] - (r.granted[d] - ask."then"[d]));
                END IF;
            END IF;
            r.levels[d] := least(told_cap, level);
        END IF;
    END LOOP;
    IF ask.generation <> r.generation THEN
        IF ask.lowered = 1 AND (r.spaced = 0 OR ask.spaced < measured * r.spaced) THEN
            r.spaced := ask.spaced; r.found := ask.found; r.opened := 0; r.generation := r.generation + 1;
        END IF;
    ELSE
        outage := CASE WHEN ask.outage = 0 THEN r.outage ELSE greatest(ask.outage, 0) END;
        known := ask.cooled > 0 OR ask.lowered = 1 OR outage <> r.outage;
        IF ask.cooled > 0 THEN r.cool_until := greatest(r.cool_until, now_at + ask.cooled); END IF;
        IF ask.lowered = 1 THEN
            r.spaced := ask.spaced; r.found := ask.found; r.opened := 0;
        ELSIF ask.spaced < 0 THEN
            r.spaced := 0;
        ELSIF ask.spaced > r.spaced AND r.spaced > 0 THEN
            r.spaced := ask.spaced; r.found := ask.found;
        END IF;
        r.outage := outage;
        IF known THEN r.generation := r.generation + 1; END IF;
    END IF;
    r.opened := greatest(r.opened, ask.opened);
    since_at := CASE WHEN mine.since > 0 THEN mine.since ELSE now_at END;
    IF ask.leaving = 0 AND greatest(ask.slots, ask.wanted[1], ask.wanted[2], ask.wanted[3], ask.wanted[4]) > 0 THEN
        alone := CASE WHEN others = 0 THEN advance ELSE 0 END;
        FOR other IN SELECT * FROM {schema}.shared_members WHERE key = record_key AND since > 0
            AND now_at - seen <= waiting
            AND (urgent > ask.urgent OR (urgent = ask.urgent AND since < since_at))
        LOOP
            FOR d IN 1..4 LOOP
                IF ask.money = 0 THEN
                    ahead[d] := ahead[d] + least(other.least[d], r.caps[d]);
                ELSIF other.least[d] <= r.levels[d] THEN
                    ahead[d] := ahead[d] + other.least[d];
                END IF;
            END LOOP;
        END LOOP;
        wait := greatest(0, r.cool_until - now_at);
        FOR d IN 1..4 LOOP
            IF r.caps[d] > 0 THEN
                lacking := CASE WHEN ask.money = 1 THEN ask.least[d] ELSE least(ask.least[d], r.caps[d]) END
                    + ahead[d] - r.levels[d] - alone * r.rates[d];
                IF lacking > (CASE WHEN ask.money = 1 THEN 1e-10 ELSE slack END) THEN
                    wait := greatest(wait, CASE WHEN r.rates[d] > 0 THEN lacking / r.rates[d] ELSE gone END);
                END IF;
            END IF;
        END LOOP;
        start_at := greatest(r.next_slot, now_at);
        IF r.spaced > 0 AND ask.slots > 0 AND start_at - now_at > slots_ahead THEN
            wait := greatest(wait, start_at - now_at - slots_ahead);
        END IF;
        IF wait = 0 THEN
            FOR d IN 1..4 LOOP
                IF r.caps[d] > 0 THEN
                    most := r.caps[d] / (slices * (others + 1));
                    IF ask.money = 1 THEN most := r.levels[d] / (money_slices * (others + 1)); END IF;
                    left_over := r.levels[d] - ahead[d] + alone * r.rates[d];
                    amount := greatest(ask.least[d], least(ask.wanted[d], most, left_over));
                    IF d = 1 AND ask.money = 0 THEN amount := greatest(ask.least[d], floor(amount)); END IF;
                    granted[d] := amount;
                    r.levels[d] := r.levels[d] - amount;
                    r.granted[d] := r.granted[d] + amount;
                END IF;
            END LOOP;
            IF r.spaced > 0 AND ask.slots > 0 THEN
                slots := greatest(1, least(ask.slots, floor(slot_seconds * r.spaced / (others + 1))));
                r.next_slot := start_at + slots / r.spaced;
            END IF;
            slots_in := start_at - now_at;
        END IF;
    END IF;
    SELECT coalesce(sum(accepted), 0) INTO accepted_sum FROM {schema}.shared_members WHERE key = record_key;
    IF ask.money = 1 THEN
        INSERT INTO {schema}.shared_accounts VALUES (record_key, ask.member, now_at, ask.number,
            ask.drawn + granted[1], ask.given, ask.kept[1] + granted[1])
        ON CONFLICT (key, member) DO UPDATE SET seen = EXCLUDED.seen, number = EXCLUDED.number,
            drawn = EXCLUDED.drawn, given = EXCLUDED.given, held = EXCLUDED.held;
    END IF;
    IF ask.leaving = 0 THEN
        FOR d IN 1..4 LOOP
            held_sum[d] := held_sum[d] + ask.kept[d] + granted[d];
            ask.kept[d] := ask.kept[d] + granted[d];
        END LOOP;
        INSERT INTO {schema}.shared_members
            (key, member, seen, held, caps, rates, least, urgent, since, accepted)
            VALUES (record_key, ask.member, now_at, ask.kept, ask.caps, ask.rates,
                CASE WHEN wait > 0 THEN ask.least ELSE none END, ask.urgent,
                CASE WHEN wait > 0 THEN since_at ELSE 0 END, ask.accepted);
    END IF;
    UPDATE {schema}.shared_limits SET at = r.at, generation = r.generation, caps = r.caps, rates = r.rates,
        learned_caps = r.learned_caps, learned_rates = r.learned_rates, levels = r.levels,
        granted = r.granted, cool_until = r.cool_until, spaced = r.spaced, found = r.found, next_slot = r.next_slot, outage = r.outage, opened = r.opened WHERE key = record_key;
    FOR d IN 1..4 LOOP held_sum[d] := r.granted[d] - held_sum[d]; END LOOP;
    RETURN json_build_object('members', others + 1, 'granted', granted, 'slots', slots, 'slots_in', slots_in,
        'wait', wait, 'cool', greatest(0, r.cool_until - now_at), 'generation', r.generation, 'caps', r.caps,
        'rates', r.rates, 'left', r.levels, 'then', held_sum, 'spaced', r.spaced, 'found', r.found,
        'accepted', accepted_sum, 'outage', r.outage, 'opened', r.opened);
END $$;
