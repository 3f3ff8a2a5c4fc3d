// Package golden holds what tests get against files that people have read.
// Where the two differ, the test fails; once a person has looked at the
// difference and wants it,
//
//	go test ./plan -update
//
// writes what the tests of a package get into its files. File is for any file.
// Archives is for txtar archives that hold input and output side by side, and
// Answers for those in which every input has an output of its own.
//
// The package declares the flag -update, so only tests may import it.
package golden

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write what comes out into the golden files")

// Update reports whether golden files are to be written. It is for tests that
// leave the comparison to another package, as to testscript.
func Update() bool { return *update }

// File fails the test unless the file at name holds got. With -update it
// writes got there; the directory must exist.
func File(t testing.TB, name string, got []byte) {
	t.Helper()
	want, err := os.ReadFile(name)
	if *update {
		if err == nil && bytes.Equal(want, got) {
			return
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.WriteFile(name, got, 0o644)
		}
	}
	switch {
	case err != nil:
		t.Fatal(err)
	case !*update && !bytes.Equal(want, got):
		t.Errorf("%s differs from what comes out (-want +got; -update takes what comes out):\n%s", name, cmp.Diff(string(want), string(got)))
	}
}

// Archives runs a subtest for each txtar archive that matches pattern, which
// is one of [filepath.Glob]; there must be one at least. tell gets the files
// of an archive and returns those that it should have: the input as it is, and
// what comes of it. It may change what it is given.
func Archives(t *testing.T, pattern string, tell func(t *testing.T, files []txtar.File) []txtar.File) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no file matches %s (%v)", pattern, err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			archive.Files = tell(t, archive.Files)
			File(t, name, txtar.Format(archive))
		})
	}
}

// Answers is Archives for archives that consist of questions and answers; see
// Answer.
func Answers(t *testing.T, pattern string, answer func(t *testing.T, name, question string) string) {
	t.Helper()
	Archives(t, pattern, func(t *testing.T, files []txtar.File) []txtar.File {
		return Answer(files, func(name, question string) string { return answer(t, name, question) })
	})
}

// Answer returns the questions among files, each with its answer behind it. An
// answer's name ends in .out, in place of the question's extension if it has
// one; the question's name without extension is given to answer. A question
// whose answer is empty has none.
func Answer(files []txtar.File, answer func(name, question string) string) []txtar.File {
	var out []txtar.File
	for _, f := range files {
		ext := path.Ext(f.Name)
		if ext == ".out" {
			continue
		}
		out = append(out, f)
		name := strings.TrimSuffix(f.Name, ext)
		if a := answer(name, string(f.Data)); a != "" {
			out = append(out, txtar.File{Name: name + ".out", Data: []byte(a)})
		}
	}
	return out
}
