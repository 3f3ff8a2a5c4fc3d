package flannel

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plugin"
)

// keeper keeps something true on a node, in either form of the plug-in.
type keeper struct {
	plugin.NodeEnv
	said string
}

// run calls reconcile whenever what it works on has changed, and when the time
// that it returned is over, unless that is 0, until ctx ends.
func (k *keeper) run(ctx context.Context, reconcile func(context.Context, plugin.Input) (time.Duration, error)) error {
	loop := retry.Loop{Changed: k.Changed, Backoff: retry.Backoff{First: firstPause, Last: longestPause}}
	return loop.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		in, complete := k.Input()
		if !complete {
			k.tell("the registry has not been read yet")
			return 0, nil
		}
		wait, err := reconcile(ctx, in)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			k.report(untold(err))
		default:
			k.report("")
		}
		return wait, err
	})
}

// writeSubnetFile tells other programs about the node's subnet.
func (k *keeper) writeSubnetFile(in plugin.Input, s Settings, subnet Subnet) error {
	mtu, err := s.mtu(in.Config, in.Node)
	return errors.Join(compileTells(err), writeFile(k.SubnetFile, formatSubnetFile(s, subnet, mtu)))
}

// tell says what keeps the node from having its lease to the node's readiness.
func (k *keeper) tell(problem string) {
	if k.Problem != nil {
		k.Problem(problem)
	}
}

// told is an error that Compile tells, too, at the object to blame.
type told struct{ error }

// Unwrap returns the error.
func (t told) Unwrap() error { return t.error }

// compileTells marks an error that Compile tells, too, so that it is not a second
// problem of the node.
func compileTells(err error) error {
	if err == nil {
		return nil
	}
	return told{err}
}

// untold is the text of an error without what Compile tells, "" where nothing is left.
func untold(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var texts []string
		for _, e := range joined.Unwrap() {
			if text := untold(e); text != "" {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "\n")
	}
	if errors.As(err, &told{}) {
		return ""
	}
	return err.Error()
}

// report says what keeps the node from having its lease, "" for nothing, once.
func (k *keeper) report(problem string) {
	k.tell(problem)
	if problem != k.said && problem != "" {
		k.Log.LogAttrs(context.Background(), slog.LevelWarn, problem)
	}
	k.said = problem
}
