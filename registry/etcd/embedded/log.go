package embedded

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger returns a zap logger that writes to a slog one. etcd warns of much
// that is as it should be, so its warnings are of level debug here, its
// errors warnings, and all is of level debug while it is closing.
func logger(log *slog.Logger, closing *atomic.Bool) *zap.Logger {
	return zap.New(&core{log.With("component", "etcd"), closing}, zap.WithCaller(false))
}

// core implements zapcore.Core.
type core struct {
	log     *slog.Logger
	closing *atomic.Bool
}

func (c *core) level(l zapcore.Level) slog.Level {
	switch {
	case l <= zapcore.WarnLevel || c.closing.Load():
		return slog.LevelDebug
	case l == zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Enabled implements zapcore.LevelEnabler.
func (c *core) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && c.log.Enabled(context.Background(), c.level(l))
}

// With implements zapcore.Core.
func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.log.With(values(fields)...), c.closing}
}

// Check implements zapcore.Core.
func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), c.level(e.Level), e.Message, values(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (c *core) Sync() error { return nil }

func values(fields []zapcore.Field) []any {
	encoded := zapcore.NewMapObjectEncoder()
	var args []any
	for _, f := range fields {
		f.AddTo(encoded)
	}
	for _, f := range fields {
		if v, ok := encoded.Fields[f.Key]; ok {
			args = append(args, f.Key, v)
		}
	}
	return args
}
