package git

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1" //nolint:gosec // git's ids and the checksum of its packs are SHA-1
	"encoding/binary"
	"encoding/hex"
	"strconv"
)

// kind is an object's type, with the number that a pack has for it.
type kind byte

const (
	kindTree kind = 2
	kindBlob kind = 3
)

func (k kind) String() string {
	if k == kindTree {
		return "tree"
	}
	return "blob"
}

// object is one that is to be written.
type object struct {
	kind    kind
	content []byte
}

// id is the object's name in a repository.
func (o object) id() string {
	h := sha1.New() //nolint:gosec // git's choice
	h.Write([]byte(o.kind.String() + " " + strconv.Itoa(len(o.content)) + "\x00"))
	h.Write(o.content)
	return hex.EncodeToString(h.Sum(nil))
}

// BlobID is the id of a file's content.
func BlobID(content string) string {
	return object{kindBlob, []byte(content)}.id()
}

// unpackLimit is how many objects are written one by one; more stay together in
// a pack, as pushes have it.
const unpackLimit = 100

// store writes objects in one go. They belong to nothing until a reference
// leads to them; a crash leaves some of them, which git collects one day.
// objectDir, where it is set, is where they go instead of into the repository.
func (r Repo) store(ctx context.Context, objects []object, objectDir string) error {
	if len(objects) == 0 {
		return nil
	}
	data, err := pack(objects)
	if err != nil {
		return err
	}
	c := call{op: "unpack-objects", dir: r.Dir, args: []string{"-q"}, stdin: bytes.NewReader(data)}
	if len(objects) > unpackLimit {
		c.op, c.args = "index-pack", []string{"--stdin"}
	}
	if objectDir != "" {
		c.env, c.temp = []string{"GIT_OBJECT_DIRECTORY=" + objectDir}, objectDir
	}
	_, err = c.output(ctx)
	return err
}

// StoreBlob writes a content and answers its id.
func (r Repo) StoreBlob(ctx context.Context, content string) (string, error) {
	o := object{kindBlob, []byte(content)}
	return o.id(), r.store(ctx, []object{o}, "")
}

// pack puts objects into git's transfer format.
func pack(objects []object) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("PACK")
	b.Write(binary.BigEndian.AppendUint32(nil, 2))
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(objects)))) //nolint:gosec // bounded by memory
	z := zlib.NewWriter(nil)
	for _, o := range objects {
		// Type and size: four bits of the size in the first byte, then seven a byte.
		size := len(o.content)
		c := byte(o.kind)<<4 | byte(size&15)
		for size >>= 4; size > 0; size >>= 7 {
			b.WriteByte(c | 0x80)
			c = byte(size & 0x7f)
		}
		b.WriteByte(c)
		z.Reset(&b)
		if _, err := z.Write(o.content); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}
	}
	sum := sha1.Sum(b.Bytes()) //nolint:gosec // git's choice
	b.Write(sum[:])
	return b.Bytes(), nil
}
