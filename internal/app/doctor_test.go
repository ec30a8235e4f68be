package app_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/config"
)

// What is broken in the data is named, with its operation.
func TestDoctorFindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, "")
	op := w.submit("a", "1", "")
	w.await(op, "APPROVAL_SENT")
	file := filepath.Join(w.s.data, "mergeflow.db")
	cfg, err := config.Load(app.ConfigOptions("", nil, map[string]any{"data_dir": w.s.data, "database": "sqlite:" + file}))
	if err != nil {
		t.Fatal(err)
	}
	if all := app.Diagnose(context.Background(), cfg, true); slices.ContainsFunc(all, func(x app.Examined) bool { return !x.OK }) {
		t.Errorf("a healthy server: %+v", all)
	}
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`DELETE FROM outbox_events`); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range app.Diagnose(context.Background(), cfg, true) {
		found = found || x.What == "I3" && !x.OK && x.Saga == op && strings.Contains(x.Detail, "no command")
	}
	if !found {
		t.Error("a waiting operation without a command was not found")
	}
}
