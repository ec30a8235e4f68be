-- Deploys that went live are asked for by time: numbers of merge requests are
-- given when they are opened and say nothing about the order of the merges.

-- +goose Up
DROP INDEX deploy_callbacks_mr;
CREATE INDEX deploy_callbacks_live ON deploy_callbacks (project, base, at DESC) WHERE result = 'live';

-- +goose Down
DROP INDEX deploy_callbacks_live;
CREATE INDEX deploy_callbacks_mr ON deploy_callbacks (project, base, mr_iid DESC);
