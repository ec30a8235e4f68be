package localgit

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
)

// GitHandler serves clone, fetch and push to stock git clients. allow decides
// per request; see forge.Host. An unknown repository is a 404 to those who may
// read.
func (h *Host) GitHandler(prefix string, allow func(r *http.Request, write bool) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rest, ok := strings.CutPrefix(req.URL.Path, prefix)
		name, exchange, known := parseExchange(req, rest)
		if !ok || !known {
			http.NotFound(w, req)
			return
		}
		if err := allow(req, exchange.Service == git.ReceivePack); err != nil {
			refuse(w, req, err)
			return
		}
		_, repo, err := h.open(req.Context(), "serve", name)
		switch kind := forge.KindOf(err); {
		case kind == forge.KindInvalid, kind == forge.KindNotFound:
			http.NotFound(w, req)
			return
		case err != nil:
			h.Log.WarnContext(req.Context(), "git request", "repo", name, "error", err)
			http.Error(w, "the repository can't be reached now", http.StatusServiceUnavailable)
			return
		}
		exchange.MaxBody = h.MaxPush
		if user, _, ok := req.BasicAuth(); ok {
			exchange.User = user
		}
		if err := repo.ServeHTTP(w, req, exchange); err != nil && !errors.Is(err, context.Canceled) {
			h.Log.WarnContext(req.Context(), "git request", "repo", name, "service", exchange.Service, "error", err)
		}
	})
}

// parseExchange takes <name>.git/<what> apart. Only the smart protocol is
// served: the older one hands out files, hidden references among them.
func parseExchange(req *http.Request, path string) (name string, x git.Exchange, ok bool) {
	for _, s := range []git.Service{git.UploadPack, git.ReceivePack} {
		if name, ok = strings.CutSuffix(path, ".git/"+string(s)); ok {
			return name, git.Exchange{Service: s}, req.Method == http.MethodPost
		}
	}
	if name, ok = strings.CutSuffix(path, ".git/info/refs"); !ok || req.Method != http.MethodGet {
		return "", git.Exchange{}, false
	}
	s := git.Service(req.URL.Query().Get("service"))
	return name, git.Exchange{Service: s, Advertise: true}, s == git.UploadPack || s == git.ReceivePack
}

// refuse answers 401 where credentials are missing or wrong, so that git asks
// its user for them, and 403 where they are good and not enough.
func refuse(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(err, forge.ErrUnauthenticated) || req.Header.Get("Authorization") == "" {
		w.Header().Set("WWW-Authenticate", `Basic realm="mergeflow", charset="UTF-8"`)
		http.Error(w, "credentials are needed", http.StatusUnauthorized)
		return
	}
	http.Error(w, "not allowed", http.StatusForbidden)
}
