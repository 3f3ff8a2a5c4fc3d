package cli

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/weftnet/weft/internal/printable"
)

// warningsTo makes a log of which people read the warnings, a line each, as a command says
// all else: what happens to it, and why. The same is said once.
func warningsTo(w io.Writer) *slog.Logger {
	return slog.New(&warnings{said: &saidLines{out: w, lines: map[string]bool{}}})
}

// warnings is the handler of such a log.
type warnings struct {
	said *saidLines
	// because is an error that a log was given for all that it says.
	because string
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
	because := h.because
	r.Attrs(func(a slog.Attr) bool {
		because = reason(a, because)
		return true
	})
	line := r.Message
	if because != "" {
		line += ": " + because
	}
	h.said.mu.Lock()
	defer h.said.mu.Unlock()
	if h.said.lines[line] {
		return nil
	}
	h.said.lines[line] = true
	_, err := printable.Fprintf(h.said.out, "warning: %s\n", line)
	return err
}

// reason is the error that an attribute tells, or else what was told before.
func reason(a slog.Attr, before string) string {
	if a.Key == "error" || a.Key == "err" {
		return a.Value.String()
	}
	return before
}

// WithAttrs implements slog.Handler.
func (h *warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		with.because = reason(a, with.because)
	}
	return &with
}

// WithGroup implements slog.Handler. People are told of no groups.
func (h *warnings) WithGroup(string) slog.Handler { return h }
