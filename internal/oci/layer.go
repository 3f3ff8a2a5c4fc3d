package oci

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Layer is a set of files that an image has, or that it has instead of those of
// the layers below.
type Layer struct {
	// Files may be in any order. Directories that lead to them need not be
	// among them: they are made with mode 0755.
	Files []File
	// Gzip compresses the layer: smaller to move, slower to write and import.
	Gzip bool
}

// File is a regular file, a directory or a symbolic link of a layer. It belongs
// to user and group 0.
type File struct {
	// Path is absolute in the image and clean, as path.Clean leaves it.
	Path string
	// Mode has the type (fs.ModeDir, fs.ModeSymlink, or none for a regular
	// file), and for files and directories the permissions, of which there must
	// be some, with fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky.
	Mode fs.FileMode
	// Data is the content of a regular file that has no Source.
	Data []byte
	// Source is the file on this machine that a regular file is a copy of.
	Source string
	// Target is where a symbolic link points. It is not followed, and need not
	// exist.
	Target string
}

const modeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// check tells what is wrong with the file by itself.
func (f File) check() error {
	kind := f.Mode.Type()
	switch {
	case !strings.HasPrefix(f.Path, "/") || path.Clean(f.Path) != f.Path || f.Path == "/":
		return errors.New("the path must be absolute and clean, without . and .. and double or trailing slashes")
	case strings.ContainsRune(f.Path+f.Target, 0):
		return errors.New("a path cannot contain a zero byte")
	case strings.HasPrefix(path.Base(f.Path), ".wh."):
		return errors.New("names that begin with .wh. mean removed files in a layer")
	case f.Mode&^(fs.ModeType|modeBits) != 0 || kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink:
		return fmt.Errorf("mode %v: only regular files, directories and symbolic links can be in a layer", f.Mode)
	case kind != fs.ModeSymlink && f.Mode.Perm() == 0:
		return errors.New("the mode has no permissions; nobody could use it")
	case (kind == fs.ModeSymlink) != (f.Target != ""):
		return errors.New("a symbolic link needs a Target, and nothing else has one")
	case kind != 0 && (f.Data != nil || f.Source != ""):
		return errors.New("only a regular file has Data or a Source")
	case f.Data != nil && f.Source != "":
		return errors.New("a file has Data or a Source, not both")
	}
	return nil
}

// entry is a file of which the size is known.
type entry struct {
	File
	size int64 // bytes; 0 unless it is a regular file
}

// entries returns the files sorted by path, with the directories that lead to
// them.
func (l Layer) entries() ([]entry, error) {
	tree := make(map[string]File, len(l.Files))
	for _, f := range l.Files {
		if err := f.check(); err != nil {
			return nil, fmt.Errorf("file %q: %w", f.Path, err)
		}
		if _, twice := tree[f.Path]; twice {
			return nil, fmt.Errorf("file %q: it is in the layer twice", f.Path)
		}
		tree[f.Path] = f
	}
	for _, f := range l.Files {
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			above, there := tree[dir]
			if there && !above.Mode.IsDir() {
				return nil, fmt.Errorf("file %q: %s above it is in the layer and not a directory", f.Path, dir)
			} else if !there {
				tree[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	var all []entry
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		e := entry{tree[name], int64(len(tree[name].Data))}
		if e.Source != "" {
			info, err := os.Stat(e.Source)
			if err != nil {
				return nil, fmt.Errorf("file %q: %w", name, err)
			}
			if !info.Mode().IsRegular() {
				return nil, fmt.Errorf("file %q: its source %s is not a regular file", name, e.Source)
			}
			e.size = info.Size()
		}
		all = append(all, e)
	}
	return all, nil
}

// measured is a layer of which digest and size are known.
type measured struct {
	entries        []entry
	gzip           bool
	modified       time.Time
	digest, diffID digest
	size           int64 // bytes
}

func (m measured) mediaType() string {
	if m.gzip {
		return typeLayerGzip
	}
	return typeLayer
}

func measure(entries []entry, compress bool, modified time.Time) (measured, error) {
	m := measured{entries: entries, gzip: compress, modified: modified}
	var err error
	m.digest, m.diffID, m.size, err = m.copy(io.Discard)
	return m, err
}

// write writes the layer again. It must be as it was when it was measured.
func (m measured) write(w io.Writer) error {
	got, _, _, err := m.copy(w)
	// Another content may be longer when it is compressed.
	if err != nil && !errors.Is(err, tar.ErrWriteTooLong) || got == m.digest {
		return err
	}
	var sources []string
	for _, f := range m.entries {
		if f.Source != "" {
			sources = append(sources, f.Source)
		}
	}
	return fmt.Errorf("one of these sources changed while the image was written; write it again: %s", strings.Join(sources, ", "))
}

// copy writes the layer, and returns its digest, its digest before compression,
// and its size in bytes.
func (m measured) copy(w io.Writer) (blob, diff digest, size int64, err error) {
	out := newSum(w)
	if !m.gzip {
		err := writeTar(out, m.entries, m.modified)
		return out.digest(), out.digest(), out.n, err
	}
	z := gzip.NewWriter(out)
	plain := newSum(z)
	err = writeTar(plain, m.entries, m.modified)
	if e := z.Close(); err == nil {
		err = e
	}
	return out.digest(), plain.digest(), out.n, err
}

func writeTar(w io.Writer, entries []entry, modified time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := e.write(t, modified); err != nil {
			return fmt.Errorf("file %q: %w", e.Path, err)
		}
	}
	return t.Close()
}

func (e entry) write(t *tar.Writer, modified time.Time) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.Path[1:], Mode: tarMode(e.Mode), Size: e.size, ModTime: modified}
	switch e.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Target, 0o777
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if e.Source == "" {
		_, err := t.Write(e.Data)
		return err
	}
	source, err := os.Open(e.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	// One byte more than there should be shows a file that has grown.
	n, err := io.Copy(t, io.LimitReader(source, e.size+1))
	if errors.Is(err, tar.ErrWriteTooLong) || err == nil && n != e.size {
		return fmt.Errorf("its source %s changed while the image was written; write it again", e.Source)
	}
	return err
}

// tarMode returns the mode in the bits that tar has for it.
func tarMode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for flag, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&flag != 0 {
			bits |= bit
		}
	}
	return bits
}

// sum passes on what is written, and counts and digests it.
type sum struct {
	w io.Writer
	h hash.Hash
	n int64
}

func newSum(w io.Writer) *sum { return &sum{w: w, h: sha256.New()} }

func (s *sum) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.h.Write(p[:n])
	s.n += int64(n)
	return n, err
}

func (s *sum) digest() digest { return digest("sha256:" + hex.EncodeToString(s.h.Sum(nil))) }
