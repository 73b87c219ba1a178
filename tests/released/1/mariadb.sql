CREATE TABLE idem_effects (
	scope VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
	operation VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
	`key` VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
	kind VARCHAR(16) NOT NULL,
	state VARCHAR(16) NOT NULL,
	fingerprint VARCHAR(80) NOT NULL,
	attempt_id VARCHAR(32) NOT NULL,
	attempts INTEGER NOT NULL,
	began_at DATETIME(6) NOT NULL,
	claimed_at DATETIME(6) NOT NULL,
	sent_at DATETIME(6) NOT NULL,
	arguments LONGTEXT,
	result LONGTEXT,
	codec SMALLINT,
	reason TEXT,
	evidence LONGTEXT,
	thread_id TEXT,
	message_id TEXT,
	tool_call_id TEXT,
	lease_seconds DOUBLE,
	settled_at DATETIME(6),
	resolved_by TEXT,
	note TEXT,
	approved_by TEXT,
	approval_note TEXT,
	PRIMARY KEY (scope, operation, `key`)
)ENGINE=InnoDB CHARSET=utf8mb4;

CREATE TABLE idem_schema (
	version INTEGER NOT NULL,
	applied_at DATETIME(6) NOT NULL,
	PRIMARY KEY (version)
)ENGINE=InnoDB CHARSET=utf8mb4;

INSERT INTO idem_schema (version, applied_at) VALUES (1, UTC_TIMESTAMP(6));

