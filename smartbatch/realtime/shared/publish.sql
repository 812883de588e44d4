-- One record of a process, as SqliteBackEnd.publish: the same steps in the same order. {schema} is the schema of
-- the store. Sums are taken in the order of their names, so that no two processes wait for each other.
CREATE OR REPLACE FUNCTION {schema}.shared_publish_v1(process text, told json, before json, kept float8)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at float8 := extract(epoch FROM clock_timestamp())::float8;
    known json;
BEGIN
    SELECT record->'sums' INTO known FROM {schema}.shared_participants
        WHERE member = process AND seen >= now_at - kept;
    IF NOT FOUND THEN known := before; END IF;
    INSERT INTO {schema}.shared_sums AS all_sums
        SELECT key, value::float8 - coalesce((known->>key)::float8, 0) FROM json_each_text(told->'sums')
            WHERE value::float8 <> coalesce((known->>key)::float8, 0) ORDER BY key
        ON CONFLICT (name) DO UPDATE SET value = all_sums.value + excluded.value;
    INSERT INTO {schema}.shared_participants VALUES (process, now_at, told)
        ON CONFLICT (member) DO UPDATE SET seen = excluded.seen, record = excluded.record;
    DELETE FROM {schema}.shared_participants WHERE seen < now_at - kept;
END $$;
