package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
)

// etcdPort is where etcd answers on the underlay.
const etcdPort = "2379"

// Etcd is the name of etcd as a daemon of its own, which runs on the machine of the first
// controller.
const Etcd = "etcd"

// etcdDaemon is the name of the daemon that etcd is, or is in.
func (l *Lab) etcdDaemon() string {
	if l.options.EtcdApart {
		return Etcd
	}
	return controllerMachine(1).name
}

// RegistryRemedy names the daemon that has the registry, and the command that starts it; ""
// where it runs.
func (l *Lab) RegistryRemedy() (daemon, command string) {
	daemon = l.etcdDaemon()
	if l.PID(daemon) != 0 {
		return daemon, ""
	}
	return daemon, "weft lab start-node " + daemon
}

// endpoint is etcd's, as the lab's machines reach it.
func (l *Lab) endpoint() string {
	return "http://" + net.JoinHostPort(controllerMachine(1).addresses(false)[0].String(), etcdPort)
}

// Endpoint is etcd's, as this machine reaches it.
func (l *Lab) Endpoint() string { return "unix://" + l.dir.etcdSocket() }

// Registry returns a connection to the lab's registry. It must be closed.
func (l *Lab) Registry() (registry.Registry, error) {
	config := etcd.Config{Endpoints: []string{l.Endpoint()}}
	config.Username, config.Password, _ = strings.Cut(l.login("lab"), ":")
	return etcd.Open(config)
}

// login returns as which user of etcd somebody logs in, as USER:PASSWORD; empty
// for none.
func (l *Lab) login(name string) string {
	if l.options.Credentials == "" {
		return ""
	}
	b, _ := os.ReadFile(filepath.Join(l.options.Credentials, name))
	return strings.TrimSpace(string(b))
}

// LogsIn reports whether the lab's daemons are users of etcd.
func (l *Lab) LogsIn() bool { return l.options.Credentials != "" }

// plugInController makes the namespace of a controller, where there is none.
func (l *Lab) plugInController(m machine) error {
	if l.isMounted(l.dir.network(m.name)) {
		return nil
	}
	return errors.Join(releaseFile(l.dir.network(m.name)), l.plugIn(m))
}

// startEtcd starts etcd as a daemon of its own, and returns when it accepts connections.
func (l *Lab) startEtcd(ctx context.Context) error {
	m := controllerMachine(1)
	if err := l.plugInController(m); err != nil {
		return err
	}
	_, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(Etcd), Log: l.dir.log(Etcd), Ready: true,
		Within: l.inNetwork(m.name),
		Stage: stage{Args: []string{l.options.Weft, "lab", "etcd", "--data-dir", l.dir.etcdData(),
			"--listen", l.endpoint() + "," + l.Endpoint(), "--ready-fd", fmt.Sprint(readyFD)}},
	}.start(ctx)
	return err
}

// startController starts a controller; one that etcd is in returns when that accepts
// connections.
func (l *Lab) startController(ctx context.Context, i int) error {
	m := controllerMachine(i)
	args := []string{l.options.Weft, "controller", "--name", m.name}
	if m.name == l.etcdDaemon() {
		args = append(args, "--embedded-etcd", "--etcd-data-dir", l.dir.etcdData(), "--etcd-allow-insecure",
			"--etcd-listen", l.endpoint()+","+l.Endpoint())
	} else {
		args = append(args, "--etcd-endpoints", l.endpoint())
	}
	if login := l.login(m.name); login != "" {
		args = append(args, "--etcd-user", login)
	}
	if err := l.plugInController(m); err != nil {
		return err
	}
	l.options.say("%s: %s", m.name, m.addresses(l.options.IPv6)[0])
	p, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(m.name), Log: l.dir.log(m.name),
		Within: l.inNetwork(m.name), Stage: stage{Args: args},
	}.start(ctx)
	if err != nil {
		return err
	}
	if m.name != l.etcdDaemon() {
		return nil
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", l.dir.etcdSocket())
		if err == nil {
			return conn.Close()
		}
		if !p.Alive() {
			return l.ended(m.name)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w while its etcd started%s", m.name, context.Cause(ctx), process.Tail(l.dir.log(m.name)))
		case <-time.After(wait):
		}
	}
}

// ended says with its last words that a daemon has ended.
func (l *Lab) ended(name string) error {
	return fmt.Errorf("%s ended%s", name, process.Tail(l.dir.log(name)))
}

// startOutside starts the server that stands for the world outside.
func (l *Lab) startOutside(ctx context.Context) error {
	_, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(switchName), Log: l.dir.log(switchName), Ready: true,
		Within: l.inNetwork(switchName),
		Stage:  stage{Args: []string{l.options.Weft, "lab", "serve", "--name", "outside", "--ready-fd", fmt.Sprint(readyFD)}},
	}.start(ctx)
	return err
}

func (l *Lab) inNetwork(name string) func(func() error) error {
	return func(f func() error) error {
		return netns.Thread(func() error {
			if err := netns.Enter(l.dir.network(name), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		})
	}
}

// Start starts what does not run: a node and its agent (see StartNode), its name server (see
// NameServer), a controller, etcd where that is a daemon of its own, or a server outside the
// cluster.
func (l *Lab) Start(ctx context.Context, name string) error {
	if name == kubeletName {
		return l.startAlone(name, func() error { return l.startKubelet(ctx) })
	}
	if name == OutsideNames && l.options.DNS {
		return l.startAlone(name, func() error { return l.startOutsideNames(ctx) })
	}
	if name == Etcd && l.options.EtcdApart {
		return l.startAlone(name, func() error { return l.startEtcd(ctx) })
	}
	if name != switchName && name != "" {
		for i := range l.options.Controllers {
			if controllerMachine(i+1).name == name {
				return l.startAlone(name, func() error { return l.startController(ctx, i+1) })
			}
		}
		if node, ok := l.nodeServed(name); ok {
			return l.startNameServer(ctx, node)
		}
		if !slices.Contains(l.Nodes(), name) {
			return l.noDaemon(name)
		}
		return l.StartNode(ctx, name)
	}
	return l.startAlone(name, func() error { return l.startOutside(ctx) })
}

// noDaemon says that nothing of the lab has a name, and what has one.
func (l *Lab) noDaemon(name string) error {
	s, err := l.Status()
	if err != nil {
		return err
	}
	var names []string
	for _, d := range s.Daemons {
		names = append(names, d.Name)
	}
	return fmt.Errorf("the lab has nothing that is called %q and could be started; it has %s", name, strings.Join(names, ", "))
}

func (l *Lab) startAlone(name string, start func() error) error {
	unlock, err := l.dir.lockDaemon(name)
	if err != nil {
		return err
	}
	defer unlock()
	if l.PID(name) != 0 {
		return nil
	}
	return start()
}
