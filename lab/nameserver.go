package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/registry"
)

// nameServerSuffix is behind a node's name in that of its name server's daemon.
const nameServerSuffix = "-dns"

// NameServer is the name of the daemon that keeps a node's name server running, where the
// lab has names.
func NameServer(node string) string { return node + nameServerSuffix }

// nodeServed returns the node whose name server has a name.
func (l *Lab) nodeServed(name string) (m machine, ok bool) {
	node, ok := strings.CutSuffix(name, nameServerSuffix)
	if !ok || !l.options.DNS {
		return m, false
	}
	m, err := l.node(node)
	return m, err == nil
}

// startNameServer starts what keeps a node's name server running, where it does not run.
func (l *Lab) startNameServer(ctx context.Context, m machine) error {
	unlock, err := l.dir.lockDaemon(m.name)
	if err != nil {
		return err
	}
	defer unlock()
	if !l.isOn(m) {
		return fmt.Errorf("node %s is off: start it with: weft lab start-node %s", m.name, m.name)
	}
	return l.keepNames(ctx, m)
}

// keepNames is startNameServer with the node held, where the lab has names.
func (l *Lab) keepNames(ctx context.Context, m machine) error {
	name := NameServer(m.name)
	if !l.options.DNS || l.PID(name) != 0 {
		return nil
	}
	p, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(name), Log: l.dir.log(name),
		Within: func(f func() error) error { return l.onNode(m.name, f) },
		Stage:  stage{Args: []string{filepath.Join(filepath.Dir(l.options.Weft), keeperBinary)}},
	}.start(ctx)
	if err == nil {
		err = l.waitKeeper(ctx, name, p, func(keeper.State) error { return nil })
	}
	if err != nil {
		return fmt.Errorf("name server of %s: %w", m.name, err)
	}
	return nil
}

// waitKeeper asks what keeps a name server running until it is as it should be. It fails when
// that ends or ctx does, with what was said last.
func (l *Lab) waitKeeper(ctx context.Context, name string, p process.ID, should func(keeper.State) error) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		state, err := keeper.Ask(ctx, fmt.Sprintf("/proc/%d/root%s", p.PID, keeper.DefaultSocket))
		if err == nil {
			err = should(state)
		}
		switch {
		case err == nil:
			return nil
		case !p.Alive():
			return errors.New("it ended" + process.Tail(l.dir.log(name)))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; %w%s", context.Cause(ctx), err, process.Tail(l.dir.log(name)))
		case <-time.After(wait):
		}
	}
}

// waitNames returns when a node's name server answers at some addresses, where the lab has
// names.
func (l *Lab) waitNames(ctx context.Context, m machine, want []netip.Addr) error {
	if !l.options.DNS || len(want) == 0 {
		return nil
	}
	name := NameServer(m.name)
	err := l.waitKeeper(ctx, name, readProcess(l.dir.record(name)), func(s keeper.State) error {
		for _, a := range want {
			if at := netip.AddrPortFrom(a, api.DNSPort); !s.Serving || !slices.Contains(s.Addresses, at) {
				return fmt.Errorf("it does not answer at %s: %s", at, s.Problem)
			}
		}
		return nil
	})
	if err == nil {
		err = l.waitLed(ctx, m, want)
	}
	if err != nil {
		return fmt.Errorf("name server of %s: %w", m.name, err)
	}
	return nil
}

// waitLed returns when a node says that questions to some addresses come to its name server.
func (l *Lab) waitLed(ctx context.Context, m machine, want []netip.Addr) error {
	reg, err := l.Registry()
	if err != nil {
		return err
	}
	defer reg.Close()
	for {
		o, err := reg.Get(ctx, api.Node, registry.Key{Name: m.name})
		if err == nil {
			said := strings.Split(o.GetAnnotations()[api.NameServerAnnotation], ",")
			i := slices.IndexFunc(want, func(a netip.Addr) bool { return !slices.Contains(said, a.String()) })
			if i < 0 {
				return nil
			}
			err = fmt.Errorf("questions to %s do not come to it", want[i])
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
