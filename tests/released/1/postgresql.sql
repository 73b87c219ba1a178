CREATE TABLE idem_effects (
	scope VARCHAR(128) COLLATE "C" NOT NULL,
	operation VARCHAR(128) COLLATE "C" NOT NULL,
	key VARCHAR(512) COLLATE "C" NOT NULL,
	kind VARCHAR(16) NOT NULL,
	state VARCHAR(16) NOT NULL,
	fingerprint VARCHAR(80) NOT NULL,
	attempt_id VARCHAR(32) NOT NULL,
	attempts INTEGER NOT NULL,
	began_at TIMESTAMP WITH TIME ZONE NOT NULL,
	claimed_at TIMESTAMP WITH TIME ZONE NOT NULL,
	sent_at TIMESTAMP WITH TIME ZONE NOT NULL,
	arguments TEXT,
	result TEXT,
	codec SMALLINT,
	reason TEXT,
	evidence TEXT,
	thread_id TEXT,
	message_id TEXT,
	tool_call_id TEXT,
	lease_seconds DOUBLE PRECISION,
	settled_at TIMESTAMP WITH TIME ZONE,
	resolved_by TEXT,
	note TEXT,
	approved_by TEXT,
	approval_note TEXT,
	PRIMARY KEY (scope, operation, key)
);

CREATE TABLE idem_schema (
	version INTEGER NOT NULL,
	applied_at TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (version)
);

INSERT INTO idem_schema (version, applied_at) VALUES (1, clock_timestamp());

