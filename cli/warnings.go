package cli

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/weftnet/weft/internal/printable"
)

// warningsTo makes a log of which people read the warnings, a line each, as a command says
// all else: what happens, to what, and why. The same is said once, and so is what happens
// to many kinds of objects alike.
func warningsTo(w io.Writer) *slog.Logger {
	return slog.New(&warnings{said: &saidLines{out: w, lines: map[string]bool{}}})
}

// warnings is the handler of such a log.
type warnings struct {
	said *saidLines
	// given are the attributes that a log was given for all that it says.
	given []slog.Attr
}

type saidLines struct {
	mu    sync.Mutex
	out   io.Writer
	lines map[string]bool
}

// Enabled implements slog.Handler.
func (*warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (h *warnings) Handle(_ context.Context, r slog.Record) error {
	var to []string
	var because string
	tell := func(a slog.Attr) bool {
		switch value := a.Value.Resolve().String(); {
		case a.Key == "kind" || value == "":
		case a.Key == "error" || a.Key == "err" || a.Key == "text":
			because = ": " + value
		default:
			to = append(to, a.Key+" "+value)
		}
		return true
	}
	for _, a := range h.given {
		tell(a)
	}
	r.Attrs(tell)
	line := r.Message
	if len(to) > 0 {
		line += " (" + strings.Join(to, ", ") + ")"
	}
	line += because
	h.said.mu.Lock()
	defer h.said.mu.Unlock()
	if h.said.lines[line] {
		return nil
	}
	h.said.lines[line] = true
	_, err := printable.Fprintf(h.said.out, "warning: %s\n", line)
	return err
}

// WithAttrs implements slog.Handler.
func (h *warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &warnings{h.said, slices.Concat(h.given, attrs)}
}

// WithGroup implements slog.Handler. People are told of no groups.
func (h *warnings) WithGroup(string) slog.Handler { return h }
