-- +goose Up

-- The database's clock. Test databases replace this function with one that
-- adds a settable offset; nothing else in the product reads a clock.
-- +goose StatementBegin
CREATE FUNCTION mergeflow_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT clock_timestamp() $$;
-- +goose StatementEnd

-- One run of a flow. The immutable columns come first, so that the new version
-- of a row shares a long prefix with the old one in the WAL. No index holds a
-- column that changes at a transition: such an index ends HOT updates. data is
-- json, not jsonb: nothing searches in it, and it reads back byte for byte.
CREATE TABLE saga_instances (
    saga_id       uuid        NOT NULL,
    flow          text        NOT NULL,
    flow_version  int         NOT NULL,
    flow_order    text        NOT NULL DEFAULT '',
    aggregate_id  text        NOT NULL,
    subject       text        NOT NULL DEFAULT '',
    target        text        NOT NULL DEFAULT '',
    project       text        NOT NULL DEFAULT '',
    title         text        NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL,
    state         text        NOT NULL,
    version       bigint      NOT NULL,
    failed_step   text        NOT NULL DEFAULT '',
    error_kind    text        NOT NULL DEFAULT '',
    last_error    text        NOT NULL DEFAULT '',
    hint          text        NOT NULL DEFAULT '',
    pending_event json,
    data          json        NOT NULL DEFAULT '{}',
    waiting_since timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    closed_at     timestamptz,
    PRIMARY KEY (saga_id)
) WITH (fillfactor = 70);

CREATE INDEX saga_instances_created ON saga_instances (created_at DESC, saga_id DESC);
CREATE INDEX saga_instances_aggregate ON saga_instances (aggregate_id);

-- The commands: one row for every saga that is running or waiting. type says
-- all that an instance must know to perform it: flow/version/state/command.
CREATE TABLE outbox_events (
    saga_id      uuid        NOT NULL,
    type         text        NOT NULL,
    available_at timestamptz NOT NULL,
    queued_since timestamptz NOT NULL,
    deadline_at  timestamptz,
    attempt      int         NOT NULL DEFAULT 0,
    checks       int         NOT NULL DEFAULT 0,
    unclear      boolean     NOT NULL DEFAULT false,
    evidence     text        NOT NULL DEFAULT '',
    lease_token  uuid,
    lease_until  timestamptz,
    held_for     uuid,
    -- What this lease's claim did, so that a release undoes exactly that.
    counted      boolean     NOT NULL DEFAULT false, -- the attempt
    dated        boolean     NOT NULL DEFAULT false, -- the deadline
    PRIMARY KEY (saga_id)
) WITH (fillfactor = 70);

-- Timers, polls, retries and deadlines are all "due", and this is the one place that looks.
CREATE INDEX outbox_events_due ON outbox_events (type, available_at);

-- Append-only. seq is the saga's version after the transition.
CREATE TABLE saga_history (
    saga_id    uuid        NOT NULL,
    seq        bigint      NOT NULL,
    event      text        NOT NULL,
    from_state text        NOT NULL DEFAULT '',
    to_state   text        NOT NULL,
    actor      text        NOT NULL,
    detail     text        NOT NULL DEFAULT '',
    at         timestamptz NOT NULL,
    PRIMARY KEY (saga_id, seq)
);

-- What moves nothing but is worth keeping. seq is the saga's version it was made at.
CREATE TABLE saga_notes (
    saga_id uuid        NOT NULL,
    note_id bigint      GENERATED ALWAYS AS IDENTITY,
    seq     bigint      NOT NULL,
    event   text        NOT NULL,
    actor   text        NOT NULL,
    detail  text        NOT NULL DEFAULT '',
    at      timestamptz NOT NULL,
    PRIMARY KEY (saga_id, note_id)
);

-- +goose Down
DROP TABLE saga_notes, saga_history, outbox_events, saga_instances;
DROP FUNCTION mergeflow_now();
