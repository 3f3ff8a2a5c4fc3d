// Package jsonfile keeps values as JSON in files that several processes read,
// of which one may be killed while it writes.
package jsonfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// TempPrefix begins the name of the file, beside the one that it is to
// replace, that a Write leaves if its process is killed.
const TempPrefix = ".new-"

// Write replaces the file at path at once, so that nobody reads half of it.
// Only the owner may read the file. It need not outlive a power cut.
func Write(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), TempPrefix+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Read sets what v points to from the file at path. The error wraps
// [os.ErrNotExist] if there is none.
func Read(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
