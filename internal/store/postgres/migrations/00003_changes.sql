-- +goose Up

-- Events that came before the state that awaits them; null for almost all.
ALTER TABLE saga_instances ADD COLUMN early json;

-- The outward row of flow change: one per subject and target. Applying again
-- resets it in place, so that what still comes for the old operation finds no owner.
CREATE TABLE bindings (
    subject_id   text        NOT NULL,
    target_key   text        NOT NULL,
    operation_id uuid        NOT NULL UNIQUE,
    status       text        NOT NULL,
    updated_at   timestamptz NOT NULL,
    PRIMARY KEY (subject_id, target_key)
) WITH (fillfactor = 80);

-- The submitted files, immutable.
CREATE TABLE change_inputs (
    saga_id uuid NOT NULL,
    n       int  NOT NULL,
    path    text NOT NULL,
    action  text NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (saga_id, n)
);

-- What callbacks without an operation id are matched by. Beside the saga's row,
-- because its columns must carry no index that changes at a transition.
CREATE TABLE change_refs (
    saga_id      uuid   NOT NULL,
    project      text   NOT NULL,
    mr_iid       bigint NOT NULL,
    merge_commit text   NOT NULL,
    PRIMARY KEY (saga_id)
);
CREATE INDEX change_refs_mr ON change_refs (project, mr_iid);
CREATE INDEX change_refs_commit ON change_refs (merge_commit) WHERE merge_commit <> '';

CREATE TABLE idempotency_keys (
    scope        text        NOT NULL,
    key          text        NOT NULL,
    hash         text        NOT NULL,
    operation_id uuid        NOT NULL,
    state        text        NOT NULL,
    status       text        NOT NULL,
    at           timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
);

-- The ledger: every callback with its verdict.
CREATE TABLE callbacks (
    seq         bigint      GENERATED ALWAYS AS IDENTITY,
    callback_id uuid        NOT NULL UNIQUE,
    saga_id     uuid,
    kind        text        NOT NULL,
    source      text        NOT NULL,
    request_id  text        NOT NULL,
    verdict     text        NOT NULL,
    rule        text        NOT NULL,
    actor       text        NOT NULL,
    payload     json        NOT NULL,
    at          timestamptz NOT NULL,
    applied_at  timestamptz,
    PRIMARY KEY (seq)
);
CREATE INDEX callbacks_saga ON callbacks (saga_id, seq) WHERE saga_id IS NOT NULL;

CREATE TABLE callback_keys (
    source     text        NOT NULL,
    request_id text        NOT NULL,
    hash       text        NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (source, request_id)
);

-- Live callbacks, for the watermark of projects that deploy in merge order.
CREATE TABLE deploy_callbacks (
    project      text        NOT NULL,
    base         text        NOT NULL,
    mr_iid       bigint      NOT NULL,
    merge_commit text        NOT NULL,
    result       text        NOT NULL,
    at           timestamptz NOT NULL
);
CREATE INDEX deploy_callbacks_mr ON deploy_callbacks (project, base, mr_iid DESC);

CREATE TABLE mr_approvals (
    pull_id uuid        NOT NULL,
    account text        NOT NULL,
    sha     text        NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (pull_id, account, sha)
);

-- +goose Down
DROP TABLE mr_approvals, deploy_callbacks, callback_keys, callbacks, idempotency_keys, change_refs, change_inputs, bindings;
ALTER TABLE saga_instances DROP COLUMN early;
