package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/search"
)

// writer is one run of Index inside its transaction. It holds at most a batch's
// paths and the ids of the contents that were replaced.
type writer struct {
	ctx  context.Context // of one call: the writer ends with it
	tx   *sql.Tx
	x    *Index
	repo string

	branch   int64
	replaced map[int64]struct{} // contents that a path has let go of

	findBlob, addBlob, addTrigrams, setFile, dropFile *sql.Stmt
}

// open finds or makes the branch and holds it against what the caller saw.
func (w *writer) open(branch, saw string) error {
	now, err := coveredCommit(w.ctx, w.tx, w.repo, branch)
	if err != nil {
		return err
	}
	if now != saw {
		return errMoved
	}
	err = w.tx.QueryRowContext(w.ctx, `
		INSERT INTO branches (repo, name, commit_id, seq) VALUES (?, ?, '', 0)
		ON CONFLICT (repo, name) DO UPDATE SET seq = seq
		RETURNING id`, w.repo, branch).Scan(&w.branch)
	if err != nil {
		return err
	}
	for _, p := range []struct {
		stmt **sql.Stmt
		sql  string
	}{
		{&w.findBlob, "SELECT id FROM blobs WHERE sha = ?"},
		{&w.addBlob, "INSERT INTO blobs (sha, content) VALUES (?, ?) RETURNING id"},
		{&w.addTrigrams, "INSERT INTO trigrams (rowid, folded) VALUES (?, ?)"},
		{&w.setFile, "INSERT INTO files (branch_id, path, blob_id) VALUES (?, ?, ?)"},
		{&w.dropFile, "DELETE FROM files WHERE branch_id = ? AND path = ? RETURNING blob_id"},
	} {
		if *p.stmt, err = w.tx.PrepareContext(w.ctx, p.sql); err != nil {
			return err
		}
	}
	return nil
}

// clear forgets the branch's files, for an index from the whole tree.
func (w *writer) clear() error {
	rows, err := w.tx.QueryContext(w.ctx, "DELETE FROM files WHERE branch_id = ? RETURNING blob_id", w.branch)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		w.replaced[id] = struct{}{}
	}
	return rows.Err()
}

// apply writes the changes. Contents that the index has already are not read;
// the others are read in batches.
func (w *writer) apply(changes []search.Change) error {
	batch, size := map[string][]string{}, int64(0) // paths by object id
	for _, c := range changes {
		if err := w.drop(c.Path); err != nil {
			return err
		}
		if c.Deleted || c.Size > w.x.o.MaxFileSize {
			continue
		}
		var id int64
		switch err := w.findBlob.QueryRowContext(w.ctx, c.Blob).Scan(&id); {
		case err == nil:
			if err := w.set(c.Path, id); err != nil {
				return err
			}
			continue
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		if _, known := batch[c.Blob]; !known {
			size += c.Size
		}
		batch[c.Blob] = append(batch[c.Blob], c.Path)
		if size >= w.x.o.BatchSize || len(batch) >= batchBlobs {
			if err := w.load(batch); err != nil {
				return err
			}
			clear(batch)
			size = 0
		}
	}
	return w.load(batch)
}

// load reads a batch of contents and files them under their paths.
func (w *writer) load(batch map[string][]string) error {
	if len(batch) == 0 {
		return nil
	}
	blobs := make([]string, 0, len(batch))
	for b := range batch {
		blobs = append(blobs, b)
	}
	given := 0
	err := w.x.o.Source.ReadBlobs(w.ctx, w.repo, blobs, func(blob string, content []byte) error {
		paths, asked := batch[blob]
		if !asked {
			return fmt.Errorf("the repository gave %s, which was not asked for", blob)
		}
		given++
		text, ok := asText(content)
		if !ok || int64(len(content)) > w.x.o.MaxFileSize {
			return nil
		}
		var id int64
		if err := w.addBlob.QueryRowContext(w.ctx, blob, text).Scan(&id); err != nil {
			return err
		}
		if _, err := w.addTrigrams.ExecContext(w.ctx, id, fold(text)); err != nil {
			return err
		}
		for _, p := range paths {
			if err := w.set(p, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the files: %w", err)
	}
	if given != len(batch) {
		return fmt.Errorf("read the files: the repository gave %d of %d", given, len(batch))
	}
	return nil
}

func (w *writer) set(path string, blob int64) error {
	_, err := w.setFile.ExecContext(w.ctx, w.branch, path, blob)
	return err
}

func (w *writer) drop(path string) error {
	var id int64
	err := w.dropFile.QueryRowContext(w.ctx, w.branch, path).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	w.replaced[id] = struct{}{}
	return err
}

// collect deletes the contents that no path holds any more.
func (w *writer) collect() error {
	for id := range w.replaced {
		r, err := w.tx.ExecContext(w.ctx, "DELETE FROM blobs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM files WHERE blob_id = blobs.id)", id)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			if err != nil {
				return err
			}
			continue
		}
		if _, err := w.tx.ExecContext(w.ctx, "DELETE FROM trigrams WHERE rowid = ?", id); err != nil {
			return err
		}
	}
	return nil
}

// close notes the commit that is covered now.
func (w *writer) close(commit string) error {
	_, err := w.tx.ExecContext(w.ctx, "UPDATE branches SET commit_id = ?, seq = (SELECT max(seq) FROM branches) + 1 WHERE id = ?", commit, w.branch)
	return err
}
