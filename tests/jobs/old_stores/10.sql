BEGIN TRANSACTION;
CREATE TABLE act (
        no INTEGER PRIMARY KEY AUTOINCREMENT,
        at REAL NOT NULL,
        who BLOB NOT NULL,
        name TEXT NOT NULL,
        target BLOB NOT NULL,
        job_id TEXT,
        count INTEGER NOT NULL,
        left_out INTEGER NOT NULL,
        detail BLOB
    );
CREATE TABLE decision (
        no INTEGER PRIMARY KEY AUTOINCREMENT,
        job INTEGER UNIQUE,
        at REAL NOT NULL,
        model TEXT NOT NULL,
        route TEXT NOT NULL,
        requests INTEGER NOT NULL,
        deadline REAL,
        p50 REAL NOT NULL,
        p95 REAL NOT NULL,
        cost REAL,
        individual_p50 REAL NOT NULL,
        individual_cost REAL,
        batch_p50 REAL,
        batch_cost REAL,
        seconds REAL,
        paid REAL,
        paid_individual REAL,
        paid_batch REAL,
        body TEXT NOT NULL
    , name BLOB);
CREATE TABLE earlier_result (
        no INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        digest BLOB NOT NULL,
        cost REAL,
        body BLOB NOT NULL,
        retried_at REAL NOT NULL,
        PRIMARY KEY (no, seq)
    );
CREATE TABLE earlier_tries (no INTEGER PRIMARY KEY, cost REAL, usage TEXT NOT NULL, body BLOB);
CREATE TABLE error_group (
        digest BLOB NOT NULL PRIMARY KEY,
        kind TEXT NOT NULL,
        message BLOB NOT NULL,
        count INTEGER NOT NULL,
        first_at REAL NOT NULL,
        last_at REAL NOT NULL,
        model TEXT NOT NULL,
        item INTEGER,
        request_id BLOB
    );
INSERT INTO "error_group" VALUES(X'82E38EA8456087D1DCA376B7CCCF433C','unknown',X'',1,2.0,2.0,'openai:m',4294967298,NULL);
CREATE TABLE fact (name BLOB NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "fact" VALUES(X'6C696D6974','5');
CREATE TABLE follower (no INTEGER PRIMARY KEY, leader INTEGER NOT NULL);
CREATE TABLE incident (
        no INTEGER PRIMARY KEY AUTOINCREMENT,
        digest BLOB NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        job_id TEXT NOT NULL,
        shard_id TEXT,
        detail BLOB NOT NULL,
        money REAL,
        at REAL NOT NULL
    );
INSERT INTO "incident" VALUES(1,X'0BBF713668957704FE3567217FBE8381','doubled_line','job-old','shard-1',X'726F772030',0.5,1.0);
CREATE TABLE incomplete_job (no INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL);
CREATE TABLE item (
        no INTEGER PRIMARY KEY,
        state INTEGER NOT NULL,
        tries INTEGER NOT NULL,
        shard INTEGER,
        size INTEGER NOT NULL,
        tokens INTEGER NOT NULL
    );
INSERT INTO "item" VALUES(4294967296,4,0,1,100,10);
INSERT INTO "item" VALUES(4294967297,0,1,NULL,101,11);
INSERT INTO "item" VALUES(4294967298,4,0,1,102,12);
INSERT INTO "item" VALUES(4294967299,3,0,2,103,13);
INSERT INTO "item" VALUES(4294967300,3,0,2,104,14);
INSERT INTO "item" VALUES(4294967301,0,0,NULL,105,15);
CREATE TABLE job (
        no INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        user_key BLOB UNIQUE,
        scope TEXT NOT NULL,
        model TEXT NOT NULL,
        kind TEXT NOT NULL,
        metadata TEXT NOT NULL,
        policy TEXT NOT NULL,
        digest BLOB NOT NULL,
        created_at REAL NOT NULL,
        state TEXT NOT NULL,
        finished_at REAL,
        total INTEGER NOT NULL,
        succeeded INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        cancelled INTEGER NOT NULL DEFAULT 0,
        cost REAL NOT NULL DEFAULT 0,
        realtime_cost REAL NOT NULL DEFAULT 0,
        unpriced INTEGER NOT NULL DEFAULT 0,
        input_tokens INTEGER NOT NULL DEFAULT 0,
        output_tokens INTEGER NOT NULL DEFAULT 0,
        seq INTEGER NOT NULL DEFAULT 0,
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        note BLOB,
        epoch INTEGER NOT NULL DEFAULT 0,
        owner TEXT,
        lease_until REAL NOT NULL DEFAULT 0
    , reserved REAL NOT NULL DEFAULT 0, truncated INTEGER NOT NULL DEFAULT 0, empty INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0);
INSERT INTO "job" VALUES(1,'job-old',X'746865206B6579','scope-1','openai:m','generate','{"team":"\u00e9"}','{"version":2,"fallback":"individual","on_unknown":"settle","timeout":null,"settle":null,"max_requests":null,"deadline":null,"late_penalty":null,"budget":null,"budget_account":null,"retention":null,"exclusive_workspace":false,"route":null,"attended":false,"traceparent":null}',X'',1000.0,'active',NULL,6,1,1,0,1.0,2.0,0,0,0,2,0,NULL,1,NULL,1795000060.0,0.0,0,0,0);
CREATE TABLE job_params (no INTEGER PRIMARY KEY, body BLOB NOT NULL);
INSERT INTO "job_params" VALUES(1,X'7B7D');
CREATE TABLE model_limit (
        model BLOB NOT NULL PRIMARY KEY, requests REAL, tokens REAL, who BLOB NOT NULL,
        since REAL NOT NULL
    );
CREATE TABLE owner (id TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, since REAL);
CREATE TABLE pause (
        model BLOB NOT NULL PRIMARY KEY, reason BLOB, who BLOB NOT NULL, since REAL NOT NULL
    );
CREATE TABLE payload (no INTEGER PRIMARY KEY, user_id BLOB, body BLOB NOT NULL);
INSERT INTO "payload" VALUES(4294967296,X'726F772D30',X'61736B2030');
INSERT INTO "payload" VALUES(4294967297,X'726F772D31',X'61736B2031');
INSERT INTO "payload" VALUES(4294967298,X'726F772D32',X'61736B2032');
INSERT INTO "payload" VALUES(4294967299,X'726F772D33',X'61736B2033');
INSERT INTO "payload" VALUES(4294967300,X'726F772D34',X'61736B2034');
INSERT INTO "payload" VALUES(4294967301,X'726F772D35',X'61736B2035');
CREATE TABLE result (
        no INTEGER PRIMARY KEY,
        seq INTEGER NOT NULL UNIQUE,
        outcome TEXT NOT NULL,
        digest BLOB NOT NULL,
        cost REAL,
        body BLOB NOT NULL
    );
INSERT INTO "result" VALUES(4294967296,4294967297,'succeeded',X'7563636565646564616E737765722030',0.5,X'616E737765722030');
INSERT INTO "result" VALUES(4294967298,4294967298,'failed',X'6661696C65646E6F',0.5,X'6E6F');
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO "schema_version" VALUES(10);
CREATE TABLE shard (
        id TEXT NOT NULL PRIMARY KEY,
        job INTEGER NOT NULL,
        no INTEGER NOT NULL,
        nonce TEXT NOT NULL UNIQUE,
        scope TEXT NOT NULL,
        model TEXT NOT NULL,
        state TEXT NOT NULL,
        size INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        due_at REAL NOT NULL,
        tries INTEGER NOT NULL DEFAULT 0,
        file_id TEXT,
        batch_id TEXT,
        watermark TEXT,
        server_time REAL,
        submitted_at REAL,
        uncertain_since REAL,
        fenced_at REAL,
        candidate TEXT,
        foreign_batches TEXT NOT NULL DEFAULT '[]',
        remote TEXT NOT NULL DEFAULT '{}',
        cancelled INTEGER NOT NULL DEFAULT 0,
        ended_at REAL,
        settled_at REAL,
        died_at REAL,
        cleaned_up INTEGER NOT NULL DEFAULT 0,
        results_until REAL,
        cost REAL,
        note BLOB, reserved REAL NOT NULL DEFAULT 0,
        UNIQUE (job, no)
    );
INSERT INTO "shard" VALUES('shard-1',1,1,'3jKQLlU69JIkGes5ohILDj','scope-1','openai:m','settled',3,300,30,5.0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'[]','{"version":1,"state":null,"status":null,"completed":null,"failed":null,"outputs":[],"cancel_sent_at":null,"searched_since":null,"fenced_since":null,"uploads":0,"results_fetched":false,"results_refetched":0,"results_cut":0,"results_size":null,"results_gone":false,"held_job":false,"checked_for_duplicates":false,"suspected_duplicates":[]}',0,NULL,2.0,NULL,0,NULL,NULL,NULL,0.0);
INSERT INTO "shard" VALUES('shard-2',1,2,'09ZWYoc2q8GBXbbCnUjhaU','scope-1','openai:m','uncertain',2,200,20,5.0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'[]','{"version":1,"state":null,"status":null,"completed":null,"failed":null,"outputs":[],"cancel_sent_at":null,"searched_since":null,"fenced_since":null,"uploads":0,"results_fetched":false,"results_refetched":0,"results_cut":0,"results_size":null,"results_gone":false,"held_job":false,"checked_for_duplicates":false,"suspected_duplicates":[]}',0,NULL,NULL,NULL,0,NULL,NULL,NULL,0.0);
CREATE TABLE shard_items (id TEXT NOT NULL PRIMARY KEY, job INTEGER NOT NULL, positions BLOB NOT NULL);
INSERT INTO "shard_items" VALUES('shard-1',1,X'000000000100000002000000');
INSERT INTO "shard_items" VALUES('shard-2',1,X'0300000004000000');
CREATE TABLE spending (
        hour INTEGER NOT NULL,
        model TEXT NOT NULL,
        route TEXT NOT NULL,
        part INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        usd REAL NOT NULL,
        realtime_usd REAL NOT NULL,
        unpriced INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        PRIMARY KEY (hour, model, route, part)
    );
INSERT INTO "spending" VALUES(0,'openai:m','',1,2,1,1.0,2.0,0,0,0);
CREATE TABLE turnaround (
        no INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, size INTEGER NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL
    );
INSERT INTO "turnaround" VALUES(1,'openai:m',3,60.0,1.0);
CREATE TABLE verdict (no INTEGER PRIMARY KEY, outcome TEXT NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX job_unfinished ON job (state, no);
CREATE INDEX item_waiting ON item (state, no) WHERE state < 3;
CREATE INDEX shard_scope ON shard (scope, state);
CREATE INDEX shard_batch ON shard (batch_id);
CREATE INDEX turnaround_model ON turnaround (model, no);
CREATE INDEX follower_leader ON follower (leader, no);
CREATE INDEX decision_of_list ON decision (no) WHERE job IS NULL;
CREATE INDEX error_group_last ON error_group (last_at);
CREATE INDEX act_job ON act (job_id, no);
CREATE INDEX result_failed ON result (no) WHERE outcome <> 'succeeded';
CREATE INDEX incident_job ON incident (job_id, no);
CREATE INDEX decision_name ON decision (name, no) WHERE name IS NOT NULL;
COMMIT;
