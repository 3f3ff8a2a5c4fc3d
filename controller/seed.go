package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/registry"
)

// Seed creates the objects in the YAML and JSON files of a directory, as far as
// there are none of their names: what a cluster's network begins with. An
// object that is there is left as it is, whatever it says, so each controller
// may do this at each start, before Run.
//
// An error names the file: one that cannot be read, or an object that is not
// of one of api.Kinds, not valid, or not of a kind that the registry serves.
// Then nothing, or nothing more, has been created. While the registry does not
// answer or refuses for another reason, Seed tries again, until ctx ends.
func Seed(ctx context.Context, r registry.Registry, dir string, log *slog.Logger) error {
	objects, err := readSeed(r, dir)
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	for _, s := range objects {
		if err := s.create(ctx, r, log); err != nil {
			return fmt.Errorf("seed: %w", err)
		}
	}
	return nil
}

// seed is an object of a file.
type seed struct {
	file string
	api.Decoded
}

// readSeed reads and checks all files of a directory. Those of other kinds, and
// those with a dot in front, which editors and ConfigMaps leave, do not count.
func readSeed(r registry.Registry, dir string) ([]seed, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []seed
	for _, e := range entries {
		name := e.Name()
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		if strings.HasPrefix(name, ".") {
			continue
		}
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		decoded, err := api.Decode(text, api.Kinds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, d := range decoded {
			s := seed{path, d}
			if _, _, err := d.Kind.Admit(d.Object); err != nil {
				return nil, s.errorf(err)
			}
			if !r.Serves(d.Kind) {
				return nil, s.errorf(fmt.Errorf("the registry has no %s", d.Kind.Plural))
			}
			all = append(all, s)
		}
	}
	return all, nil
}

func (s seed) errorf(err error) error {
	return fmt.Errorf("%s: line %d: %w", s.file, s.Line, err)
}

// create creates the object unless there is one, and does not give up before
// the registry has answered.
func (s seed) create(ctx context.Context, r registry.Registry, log *slog.Logger) error {
	said, wait := "", backoff
	log = log.With("kind", s.Kind.Singular, "name", registry.KeyOf(s.Object), "file", s.file)
	for {
		_, err := r.Create(ctx, s.Kind, s.Object)
		switch {
		case err == nil:
			log.Info("created what the cluster's network begins with")
			return nil
		case errors.Is(err, registry.ErrExists):
			return nil
		case errors.Is(err, registry.ErrInvalid):
			return s.errorf(err)
		case ctx.Err() != nil:
			return s.errorf(context.Cause(ctx))
		case err.Error() != said:
			said = err.Error()
			log.Warn("cannot create what the cluster's network begins with; trying again", "error", err)
		}
		retry.Sleep(ctx, wait.Next())
	}
}
