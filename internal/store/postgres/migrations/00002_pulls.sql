-- +goose Up

CREATE TABLE repositories (
    name              text        NOT NULL,
    default_branch    text        NOT NULL,
    required_checks   jsonb       NOT NULL DEFAULT '[]',
    merge_style       text        NOT NULL CHECK (merge_style IN ('merge', 'squash')),
    require_up_to_date boolean    NOT NULL DEFAULT false,
    reviewers         jsonb       NOT NULL DEFAULT '[]',
    last_iid          bigint      NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL,
    PRIMARY KEY (name)
);
-- Names differ in more than case: repositories are directories, and some file systems fold case.
CREATE UNIQUE INDEX repositories_folded ON repositories (lower(name));

-- The local forge's truth (forge_state, merge_commit) and the saga's view
-- (saga_status, operation_id) side by side.
CREATE TABLE pull_requests (
    pull_id      uuid        NOT NULL,
    forge        text        NOT NULL DEFAULT 'default',
    repo         text        NOT NULL,
    iid          bigint      NOT NULL,
    source       text        NOT NULL,
    target       text        NOT NULL,
    title        text        NOT NULL,
    description  text        NOT NULL DEFAULT '',
    author       text        NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL,
    forge_state  text        NOT NULL CHECK (forge_state IN ('open', 'merged', 'closed')),
    saga_status  text        NOT NULL DEFAULT '',
    merge_commit text        NOT NULL DEFAULT '',
    operation_id uuid,
    updated_at   timestamptz NOT NULL,
    PRIMARY KEY (pull_id),
    UNIQUE (forge, repo, iid)
) WITH (fillfactor = 80);
CREATE INDEX pull_requests_created ON pull_requests (created_at DESC, pull_id DESC);
CREATE INDEX pull_requests_source ON pull_requests (forge, repo, source);

CREATE TABLE watchers (
    pull_id uuid NOT NULL REFERENCES pull_requests ON DELETE CASCADE,
    watcher text NOT NULL,
    PRIMARY KEY (pull_id, watcher)
);

CREATE TABLE commit_statuses (
    repo        text        NOT NULL,
    sha         text        NOT NULL,
    context     text        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('pending', 'success', 'failure', 'error')),
    description text        NOT NULL DEFAULT '',
    target_url  text        NOT NULL DEFAULT '',
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (repo, sha, context)
);

CREATE TABLE notification_receipts (
    saga_id     uuid        NOT NULL,
    recipient   text        NOT NULL,
    delivery_id uuid        NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (saga_id, recipient)
);

-- +goose Down
DROP TABLE notification_receipts, commit_statuses, watchers, pull_requests, repositories;
