-- +goose Up

-- Times are microseconds since 1970 (UTC), uuids and JSON are text. The clock
-- is the process's (Options.Clock): one process owns the file.

-- One run of a flow. No index holds a column that changes at a transition.
CREATE TABLE saga_instances (
    saga_id       TEXT    NOT NULL PRIMARY KEY,
    flow          TEXT    NOT NULL,
    flow_version  INTEGER NOT NULL,
    flow_order    TEXT    NOT NULL DEFAULT '',
    aggregate_id  TEXT    NOT NULL,
    subject       TEXT    NOT NULL DEFAULT '',
    target        TEXT    NOT NULL DEFAULT '',
    project       TEXT    NOT NULL DEFAULT '',
    title         TEXT    NOT NULL DEFAULT '',
    created_at    INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    failed_step   TEXT    NOT NULL DEFAULT '',
    error_kind    TEXT    NOT NULL DEFAULT '',
    last_error    TEXT    NOT NULL DEFAULT '',
    hint          TEXT    NOT NULL DEFAULT '',
    pending_event TEXT,
    data          TEXT    NOT NULL DEFAULT '{}',
    waiting_since INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    closed_at     INTEGER
) STRICT;

CREATE INDEX saga_instances_created ON saga_instances (created_at DESC, saga_id DESC);
CREATE INDEX saga_instances_aggregate ON saga_instances (aggregate_id);

-- The commands: one row for every saga that is running or waiting. type says
-- all that an instance must know to perform it: flow/version/state/command.
CREATE TABLE outbox_events (
    saga_id      TEXT    NOT NULL PRIMARY KEY,
    type         TEXT    NOT NULL,
    available_at INTEGER NOT NULL,
    queued_since INTEGER NOT NULL,
    deadline_at  INTEGER,
    attempt      INTEGER NOT NULL DEFAULT 0,
    checks       INTEGER NOT NULL DEFAULT 0,
    unclear      INTEGER NOT NULL DEFAULT 0,
    evidence     TEXT    NOT NULL DEFAULT '',
    lease_token  TEXT,
    lease_until  INTEGER,
    held_for     TEXT,
    -- What this lease's claim did, so that a release undoes exactly that.
    counted      INTEGER NOT NULL DEFAULT 0, -- the attempt
    dated        INTEGER NOT NULL DEFAULT 0  -- the deadline
) STRICT, WITHOUT ROWID;

-- Timers, polls, retries and deadlines are all "due", and this is the one place that looks.
CREATE INDEX outbox_events_due ON outbox_events (type, available_at);

-- Append-only. seq is the saga's version after the transition.
CREATE TABLE saga_history (
    saga_id    TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    event      TEXT    NOT NULL,
    from_state TEXT    NOT NULL DEFAULT '',
    to_state   TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    detail     TEXT    NOT NULL DEFAULT '',
    at         INTEGER NOT NULL,
    PRIMARY KEY (saga_id, seq)
) STRICT, WITHOUT ROWID;

-- What moves nothing but is worth keeping. seq is the saga's version it was made at.
CREATE TABLE saga_notes (
    note_id INTEGER PRIMARY KEY,
    saga_id TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    event   TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    detail  TEXT    NOT NULL DEFAULT '',
    at      INTEGER NOT NULL
) STRICT;

CREATE INDEX saga_notes_saga ON saga_notes (saga_id, seq, note_id);

-- +goose Down
DROP TABLE saga_notes;
DROP TABLE saga_history;
DROP TABLE outbox_events;
DROP TABLE saga_instances;
