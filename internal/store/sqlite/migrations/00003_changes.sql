-- +goose Up

-- Events that came before the state that awaits them; null for almost all.
ALTER TABLE saga_instances ADD COLUMN early TEXT;

-- The outward row of flow change: one per subject and target. Applying again
-- resets it in place, so that what still comes for the old operation finds no owner.
CREATE TABLE bindings (
    subject_id   TEXT    NOT NULL,
    target_key   TEXT    NOT NULL,
    operation_id TEXT    NOT NULL UNIQUE,
    status       TEXT    NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (subject_id, target_key)
) STRICT, WITHOUT ROWID;

-- The submitted files, immutable.
CREATE TABLE change_inputs (
    saga_id TEXT    NOT NULL,
    n       INTEGER NOT NULL,
    path    TEXT    NOT NULL,
    action  TEXT    NOT NULL,
    content TEXT    NOT NULL,
    PRIMARY KEY (saga_id, n)
) STRICT;

-- What callbacks without an operation id are matched by. Beside the saga's row,
-- because its columns must carry no index that changes at a transition.
CREATE TABLE change_refs (
    saga_id      TEXT    NOT NULL PRIMARY KEY,
    project      TEXT    NOT NULL,
    mr_iid       INTEGER NOT NULL,
    merge_commit TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX change_refs_mr ON change_refs (project, mr_iid);
CREATE INDEX change_refs_commit ON change_refs (merge_commit) WHERE merge_commit <> '';

CREATE TABLE idempotency_keys (
    scope        TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    hash         TEXT    NOT NULL,
    operation_id TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    status       TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- The ledger: every callback with its verdict.
CREATE TABLE callbacks (
    seq         INTEGER PRIMARY KEY,
    callback_id TEXT    NOT NULL UNIQUE,
    saga_id     TEXT,
    kind        TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    request_id  TEXT    NOT NULL,
    verdict     TEXT    NOT NULL,
    rule        TEXT    NOT NULL,
    actor       TEXT    NOT NULL,
    payload     TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    applied_at  INTEGER
) STRICT;
CREATE INDEX callbacks_saga ON callbacks (saga_id, seq) WHERE saga_id IS NOT NULL;

CREATE TABLE callback_keys (
    source     TEXT    NOT NULL,
    request_id TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (source, request_id)
) STRICT, WITHOUT ROWID;

-- Live callbacks, for the watermark of projects that deploy in merge order.
CREATE TABLE deploy_callbacks (
    project      TEXT    NOT NULL,
    base         TEXT    NOT NULL,
    mr_iid       INTEGER NOT NULL,
    merge_commit TEXT    NOT NULL,
    result       TEXT    NOT NULL,
    at           INTEGER NOT NULL
) STRICT;
CREATE INDEX deploy_callbacks_mr ON deploy_callbacks (project, base, mr_iid DESC);

CREATE TABLE mr_approvals (
    pull_id TEXT    NOT NULL,
    account TEXT    NOT NULL,
    sha     TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (pull_id, account, sha)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE mr_approvals;
DROP TABLE deploy_callbacks;
DROP TABLE callback_keys;
DROP TABLE callbacks;
DROP TABLE idempotency_keys;
DROP TABLE change_refs;
DROP TABLE change_inputs;
DROP TABLE bindings;
ALTER TABLE saga_instances DROP COLUMN early;
