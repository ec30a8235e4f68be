-- +goose Up

CREATE TABLE repositories (
    name              TEXT    NOT NULL PRIMARY KEY,
    default_branch    TEXT    NOT NULL,
    required_checks   TEXT    NOT NULL DEFAULT '[]',
    merge_style       TEXT    NOT NULL CHECK (merge_style IN ('merge', 'squash')),
    require_up_to_date INTEGER NOT NULL DEFAULT 0,
    reviewers         TEXT    NOT NULL DEFAULT '[]',
    last_iid          INTEGER NOT NULL DEFAULT 0,
    created_at        INTEGER NOT NULL
) STRICT;
-- Names differ in more than case: repositories are directories, and some file systems fold case.
CREATE UNIQUE INDEX repositories_folded ON repositories (lower(name));

-- The local forge's truth (forge_state, merge_commit) and the saga's view
-- (saga_status, operation_id) side by side.
CREATE TABLE pull_requests (
    pull_id      TEXT    NOT NULL PRIMARY KEY,
    forge        TEXT    NOT NULL DEFAULT 'default',
    repo         TEXT    NOT NULL,
    iid          INTEGER NOT NULL,
    source       TEXT    NOT NULL,
    target       TEXT    NOT NULL,
    title        TEXT    NOT NULL,
    description  TEXT    NOT NULL DEFAULT '',
    author       TEXT    NOT NULL DEFAULT '',
    created_at   INTEGER NOT NULL,
    forge_state  TEXT    NOT NULL CHECK (forge_state IN ('open', 'merged', 'closed')),
    saga_status  TEXT    NOT NULL DEFAULT '',
    merge_commit TEXT    NOT NULL DEFAULT '',
    operation_id TEXT,
    updated_at   INTEGER NOT NULL,
    UNIQUE (forge, repo, iid)
) STRICT;
CREATE INDEX pull_requests_created ON pull_requests (created_at DESC, pull_id DESC);
CREATE INDEX pull_requests_source ON pull_requests (forge, repo, source);

CREATE TABLE watchers (
    pull_id TEXT NOT NULL REFERENCES pull_requests ON DELETE CASCADE,
    watcher TEXT NOT NULL,
    PRIMARY KEY (pull_id, watcher)
) STRICT, WITHOUT ROWID;

CREATE TABLE commit_statuses (
    repo        TEXT    NOT NULL,
    sha         TEXT    NOT NULL,
    context     TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('pending', 'success', 'failure', 'error')),
    description TEXT    NOT NULL DEFAULT '',
    target_url  TEXT    NOT NULL DEFAULT '',
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (repo, sha, context)
) STRICT, WITHOUT ROWID;

CREATE TABLE notification_receipts (
    saga_id     TEXT    NOT NULL,
    recipient   TEXT    NOT NULL,
    delivery_id TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (saga_id, recipient)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE notification_receipts;
DROP TABLE commit_statuses;
DROP TABLE watchers;
DROP TABLE pull_requests;
DROP TABLE repositories;
