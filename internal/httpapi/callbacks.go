package httpapi

import (
	"context"
	"net"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/outbound"
)

// Sender is how a callback says who sent it: a Standard Webhooks signature over
// the body as it came, or a bearer secret. It is exported because huma reads the
// parameters of exported fields only.
type Sender struct {
	Authorization string `header:"Authorization"`
	ID            string `header:"webhook-id"`
	Timestamp     string `header:"webhook-timestamp"`
	Signature     string `header:"webhook-signature"`
	RawBody       []byte

	remote string
}

// Resolve notes where the call comes from.
func (s *Sender) Resolve(ctx huma.Context) []error {
	s.remote = ctx.RemoteAddr()
	return nil
}

type approvalCallbackIn struct {
	Sender
	Body ApprovalCallback
}

type deployCallbackIn struct {
	Sender
	Body DeployCallback
}

type verdictOut struct {
	Body Verdict
}

func (a *api) callbackRoutes() {
	register(a, post("approval-callback", "/v1/callbacks/approval", "An approval system's decision; every verdict is a 200", http.StatusOK, 401, 422, 503), a.approvalCallback)
	register(a, post("deploy-callback", "/v1/callbacks/deploy", "A deploy pipeline's result; every verdict is a 200", http.StatusOK, 401, 422, 503), a.deployCallback)
}

func (a *api) approvalCallback(ctx context.Context, in *approvalCallbackIn) (*verdictOut, error) {
	source, err := in.authentic("approval", a.ApprovalSecrets)
	if err != nil {
		return nil, err
	}
	v, err := a.Changes.Approval(ctx, change.ApprovalCallback{
		RequestID: in.Body.RequestID, OperationID: in.Body.OperationID, ApprovalID: in.Body.ApprovalID, Decision: in.Body.Decision,
		By: in.Body.By, Reason: in.Body.Reason, Ext: in.Body.Ext, Raw: in.RawBody, Source: source,
	})
	return a.verdict("approval", v, err)
}

func (a *api) deployCallback(ctx context.Context, in *deployCallbackIn) (*verdictOut, error) {
	source, err := in.authentic("deploy", a.DeploySecrets)
	if err != nil {
		return nil, err
	}
	v, err := a.Changes.Deployed(ctx, change.DeployCallback{
		RequestID: in.Body.RequestID, Project: in.Body.Project, MRIID: in.Body.MRIID, OperationID: in.Body.OperationID,
		MergeCommit: in.Body.MergeCommit, Result: in.Body.Result, Detail: in.Body.Detail, Raw: in.RawBody, Source: source,
	})
	return a.verdict("deploy", v, err)
}

func (a *api) verdict(kind string, v change.Verdict, err error) (*verdictOut, error) {
	if err != nil {
		return nil, err
	}
	if a.OnCallback != nil {
		a.OnCallback(kind, v.Verdict)
	}
	return &verdictOut{Verdict{Verdict: v.Verdict, Rule: v.Rule}}, nil
}

// authentic checks the sender against each secret that is valid now. Without
// one, calls from this machine are believed, others are not. The source is the
// endpoint and what its secrets are for, not which of them was used: a sender
// that repeats a delivery after a rotation of its secret is the same sender.
func (s *Sender) authentic(endpoint string, secrets func() []string) (source string, err error) {
	var valid []string
	if secrets != nil {
		valid = secrets()
	}
	if len(valid) == 0 {
		if host, _, err := net.SplitHostPort(s.remote); err == nil && net.ParseIP(host).IsLoopback() {
			return endpoint, nil
		}
		return "", unauthorized()
	}
	h := http.Header{}
	for name, v := range map[string]string{"Authorization": s.Authorization, "webhook-id": s.ID, "webhook-timestamp": s.Timestamp, "webhook-signature": s.Signature} {
		if v != "" {
			h.Set(name, v)
		}
	}
	for _, secret := range valid {
		ok := outbound.VerifyBearer(h, secret) == nil
		if s.Signature != "" {
			ok = outbound.VerifySignature(h, secret, s.RawBody) == nil
		}
		if ok {
			return endpoint, nil
		}
	}
	return "", unauthorized()
}

func unauthorized() *Error {
	return newError(http.StatusUnauthorized, "unauthorized", "no valid signature or bearer secret")
}
