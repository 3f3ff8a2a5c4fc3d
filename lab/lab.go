package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/internal/jsonfile"
)

// MaxNodes and MaxControllers are the most that a lab may have.
const (
	MaxNodes       = 250
	MaxControllers = 8
)

// The binaries that must lie beside weft.
const (
	agentBinary = "weft-agent"
	cniBinary   = "weft-cni"
	// The first of them starts the second.
	keeperBinary     = "weft-dns"
	nameServerBinary = "weft-dns-server"
)

// Options says what kind of lab to make. The zero value is a good one.
type Options struct {
	// Dir is where the lab lies; empty means $WEFT_LAB_DIR or DefaultDir. It
	// must not exist, or be empty.
	Dir string `json:"-"`
	// Nodes is how many nodes there are at first, 1 to MaxNodes; 0 means 3.
	Nodes int `json:"nodes"`
	// Controllers is how many controllers there are, 1 to MaxControllers; 0
	// means 1. The first has the embedded etcd.
	Controllers int `json:"controllers"`
	// EtcdApart has etcd be a daemon of its own, Etcd, beside the first controller
	// instead of within it, so that either can be killed without the other.
	EtcdApart bool `json:"etcdApart,omitempty"`
	// Plugin and DataPlane are what the ClusterConfig says; empty means the
	// defaults.
	Plugin    string `json:"plugin,omitempty"`
	DataPlane string `json:"dataPlane,omitempty"`
	// IPv6 gives nodes and pods addresses of both families.
	IPv6 bool `json:"ipv6,omitempty"`
	// MTU is that of the links between the nodes, 1280 to 65535; 0 means 1500. With
	// IPv6 the tunnel must have room for packets of 1280 bytes (RFC 8200, section 5)
	// besides its own headers, unless Objects say how pods reach other nodes.
	MTU int `json:"mtu"`
	// DNS has pods find others by names, as on Kubernetes: each node has a name server, which
	// answers unless a ClusterConfig among Objects leaves that to pods. Pods ask at Service
	// kube-system/kube-dns, or another that the ClusterConfig names, which is made where
	// Objects have none. The world outside has names, too (OutsideZone). Pods have a
	// resolv.conf, a hosts file and a hostname of their own, and variables of Services in
	// their environment.
	DNS bool `json:"dns,omitempty"`
	// Objects are created before the first agent starts, besides the
	// ClusterConfig. The plug-in's own configuration object among them takes
	// the place of the one the lab would write.
	Objects []Object `json:"-"`
	// Weft is the weft binary, with weft-agent and weft-cni beside it, and with DNS weft-dns
	// and weft-dns-server; empty means the running program.
	Weft string `json:"weft"`
	// Credentials, if not empty, is a directory in which a file of the name of a
	// daemon, "node1" or "controller1", says as which user of etcd that logs in,
	// as USER:PASSWORD, and "lab" as which the lab itself does. Who has no file
	// does not log in. It is looked at at each start.
	Credentials string `json:"credentials,omitempty"`
	// Progress, if not nil, is told what is being done, a line each.
	Progress func(string) `json:"-"`
}

// Lab is a lab that is up.
type Lab struct {
	dir     dir
	options Options
}

// state is what lab.json holds.
type state struct {
	Options
	// Complete says that Up came to its end.
	Complete bool `json:"complete"`
}

// Dir returns where the lab lies when the options do not say.
func Dir() string { return cmp.Or(os.Getenv(DirVariable), DefaultDir) }

// resolve returns the real and absolute path of a lab's directory, by which
// its mounts are found. Empty means $WEFT_LAB_DIR or DefaultDir.
func resolve(directory string) (dir, error) {
	abs, err := filepath.Abs(cmp.Or(directory, Dir()))
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	} else if real, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(real, filepath.Base(abs))
	}
	return dir(abs), nil
}

func (o *Options) fill() error {
	d, err := resolve(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = string(d)
	// sockaddr_un has room for 107 bytes and a zero.
	if n := len(d.etcdSocket()); n > 107 {
		return fmt.Errorf("the lab's directory %s has too long a name by %d bytes for the socket in it: choose a shorter one with --dir or %s", o.Dir, n-107, DirVariable)
	}
	o.Nodes, o.Controllers, o.MTU = cmp.Or(o.Nodes, 3), cmp.Or(o.Controllers, 1), cmp.Or(o.MTU, 1500)
	switch {
	case o.Nodes < 1 || o.Nodes > MaxNodes:
		return fmt.Errorf("a lab has 1 to %d nodes, not %d", MaxNodes, o.Nodes)
	case o.Controllers < 1 || o.Controllers > MaxControllers:
		return fmt.Errorf("a lab has 1 to %d controllers, not %d", MaxControllers, o.Controllers)
	case o.MTU < 1280 || o.MTU > 65535:
		return fmt.Errorf("the MTU of a lab's links is 1280 to 65535, not %d", o.MTU)
	}
	if say := o.Progress; say != nil {
		var mu sync.Mutex
		o.Progress = func(line string) {
			mu.Lock()
			defer mu.Unlock()
			say(line)
		}
	}
	if o.Weft == "" {
		if o.Weft, err = os.Executable(); err != nil {
			return err
		}
	}
	if o.Weft, err = filepath.Abs(o.Weft); err != nil {
		return err
	}
	for _, binary := range o.binaries() {
		if _, err := os.Stat(binary); err != nil {
			return fmt.Errorf("the lab needs %s: %w (build them with: make build)", binary, err)
		}
		if strings.HasPrefix(binary, "/run/") {
			return fmt.Errorf("the lab cannot use %s: nodes have a /run of their own; put the binary elsewhere", binary)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("a lab needs root: it makes network namespaces")
	}
	if o.DNS {
		return hasFiles()
	}
	return nil
}

// binaries are the programs that the lab needs.
func (o *Options) binaries() []string {
	all := []string{o.Weft}
	names := []string{agentBinary, cniBinary}
	if o.DNS {
		names = append(names, keeperBinary, nameServerBinary)
	}
	for _, name := range names {
		all = append(all, filepath.Join(filepath.Dir(o.Weft), name))
	}
	return all
}

func (o *Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// Up makes a lab and returns when pods can run on all of its nodes. When that
// fails, or ctx ends first, nothing is left of it.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	objects, err := o.objects()
	if err != nil {
		return nil, err
	}
	d := dir(o.Dir)
	unlock, err := d.lock(alone, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > 1 { // the lock
		var s state
		switch err := jsonfile.Read(d.optionsFile(), &s); {
		case errors.Is(err, os.ErrNotExist):
			// Nothing of the lab's own stays in a directory that is not.
			os.Remove(d.lockFile())
			return nil, fmt.Errorf("%s is not empty and holds no lab: choose another directory with --dir or %s", o.Dir, DirVariable)
		case err != nil:
			return nil, err
		case !s.Complete:
			return nil, fmt.Errorf("an unfinished lab lies in %s: remove it with: weft lab down", o.Dir)
		default:
			return nil, fmt.Errorf("a lab is up already in %s: remove it with: weft lab down", o.Dir)
		}
	}
	l := &Lab{dir: d, options: o}
	if err := jsonfile.Write(d.optionsFile(), state{Options: o}); err != nil {
		return nil, err
	}
	err = l.up(ctx, objects)
	if err == nil {
		err = jsonfile.Write(d.optionsFile(), state{Options: o, Complete: true})
	}
	if err != nil {
		switch ended := ctx.Err(); {
		case errors.Is(ended, context.Canceled):
			err = errors.New("interrupted")
		case ended != nil && !errors.Is(err, context.Cause(ctx)):
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		if left := l.remove(); left != nil {
			return nil, fmt.Errorf("%w\nnot all that was made of the lab could be removed again (weft lab down tries once more): %w", err, left)
		}
		return nil, fmt.Errorf("%w\nall that was made of the lab is removed again", err)
	}
	return l, nil
}

func (l *Lab) up(ctx context.Context, objects []Object) error {
	for _, sub := range []string{l.dir.namespaces(), l.dir.daemons(), l.dir.pods()} {
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
	}
	if err := privateMount(l.dir.namespaces()); err != nil {
		return err
	}
	l.options.say("switch: %s, and the outside world at %s port 8080", underlay4, Outside)
	if l.options.DNS {
		l.options.say("%s: names of the outside world, as www.%s", OutsideNames, OutsideZone)
	}
	if err := l.makeSwitch(); err != nil {
		return err
	}
	tasks, tctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return l.startOutside(tctx) })
	if l.options.DNS {
		tasks.Go(func() error { return l.startOutsideNames(tctx) })
	}
	tasks.Go(func() error { return l.startKubelet(tctx) })
	tasks.Go(func() error {
		if l.options.EtcdApart {
			if err := l.startEtcd(tctx); err != nil {
				return err
			}
		}
		for i := range l.options.Controllers {
			if err := l.startController(tctx, i+1); err != nil {
				return err
			}
		}
		return l.createObjects(tctx, objects)
	})
	// Namespaces are made while etcd starts.
	tasks.Go(func() error {
		for i := range l.options.Nodes {
			if err := l.bootNode(nodeMachine(i + 1)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := tasks.Wait(); err != nil {
		return err
	}
	agents, actx := errgroup.WithContext(ctx)
	for i := range l.options.Nodes {
		agents.Go(func() error {
			m := nodeMachine(i + 1)
			if err := l.keepNames(actx, m); err != nil {
				return err
			}
			if err := l.startAgent(actx, m); err != nil {
				return err
			}
			return l.waitNames(actx, m, nodeAddresses(objects))
		})
	}
	if err := agents.Wait(); err != nil {
		return err
	}
	// Of all but the first nobody else notices.
	for i := range l.options.Controllers {
		if name := controllerMachine(i + 1).name; l.PID(name) == 0 {
			return l.ended(name)
		}
	}
	return nil
}

// Open returns the lab in a directory; empty means $WEFT_LAB_DIR or
// DefaultDir. It returns ErrNoLab if none is up there.
func Open(directory string) (*Lab, error) {
	d, err := resolve(directory)
	if err != nil {
		return nil, err
	}
	var s state
	err = jsonfile.Read(d.optionsFile(), &s)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, d.noLab()
	case err != nil:
		return nil, err
	case !s.Complete:
		return nil, fmt.Errorf("%w in %s: it is being made, or was left unfinished (remove it with: weft lab down)", ErrNoLab, d)
	}
	s.Dir = string(d)
	return &Lab{dir: d, options: s.Options}, nil
}

// Tell has say told what is being done, a line each.
func (l *Lab) Tell(say func(string)) { l.options.Progress = say }

// Options returns how the lab was made.
func (l *Lab) Options() Options { return l.options }

// Down removes the lab in a directory, with all that runs in it, also when it
// was left half made. It returns ErrNoLab if there is none.
func Down(directory string) error {
	d, err := resolve(directory)
	if err != nil {
		return err
	}
	unlock, err := d.lock(alone, false)
	if err != nil {
		return err
	}
	defer unlock()
	// Up writes this file first, and remove deletes it last.
	if _, err := os.Stat(d.optionsFile()); err != nil {
		if entries, err := os.ReadDir(string(d)); err != nil || len(entries) > 1 {
			return fmt.Errorf("%s is not a lab's: nothing was removed", d)
		}
	}
	return (&Lab{dir: d}).remove()
}

// remove does what Down does, with the lock held.
func (l *Lab) remove() error {
	if err := l.killAll("daemons/*.json", "pods/*/*/process.json"); err != nil {
		return err
	}
	// What else runs there, as by Exec, would go on where nobody finds it any more.
	if err := l.endWithinAll(); err != nil {
		return err
	}
	if err := unmountBelow(string(l.dir)); err != nil {
		return err
	}
	entries, err := os.ReadDir(string(l.dir))
	if err != nil {
		return err
	}
	// What says that a lab lies here goes last.
	for _, keep := range []bool{false, true} {
		for _, e := range entries {
			path := filepath.Join(string(l.dir), e.Name())
			if path == l.dir.lockFile() || (path == l.dir.optionsFile()) != keep {
				continue
			}
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(l.dir.lockFile()); err != nil {
		return err
	}
	// Somebody may be making the next lab here already.
	if err := os.Remove(string(l.dir)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// killAll ends the processes whose records match the patterns, which are
// relative to the lab's directory.
func (l *Lab) killAll(patterns ...string) error {
	tasks := new(errgroup.Group)
	tasks.SetLimit(64)
	for _, pattern := range patterns {
		records, err := fs.Glob(os.DirFS(string(l.dir)), pattern)
		if err != nil {
			return err
		}
		for _, r := range records {
			tasks.Go(func() error { return readProcess(filepath.Join(string(l.dir), r)).Kill() })
		}
	}
	return tasks.Wait()
}
