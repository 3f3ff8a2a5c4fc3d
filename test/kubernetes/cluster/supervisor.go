package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// File descriptors of the supervisor.
const (
	goFD       = 3 // says "go" once the supervisor is in the records
	statusFD   = 4 // takes why the cluster did not come up, or "ok"
	attachedFD = 5 // ends with the caller of an attached cluster
)

// supervisor is the process that has all of a cluster in its namespaces of
// processes and mounts, so that with it, all of that ends.
type supervisor struct {
	config       Config
	groups       groups
	log          *slog.Logger
	controlPlane *controlplane.ControlPlane
	machines     []*machine
	listener     net.Listener // of the API server, on the machine
}

// runSupervisor brings the cluster in dir up and serves requests until it is
// killed, or its caller ends.
func runSupervisor(dir string) error {
	var word [2]byte
	if _, err := io.ReadFull(os.NewFile(goFD, "go"), word[:]); err != nil {
		return errors.New("this command is for the cluster's own use")
	}
	status := os.NewFile(statusFD, "status")
	unix.CloseOnExec(goFD)
	unix.CloseOnExec(statusFD)
	s := &supervisor{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if err := jsonfile.Read(configFile(dir), &s.config); err != nil {
		fmt.Fprint(status, err)
		return err
	}
	if s.config.Attached {
		unix.CloseOnExec(attachedFD)
		go func() {
			io.Copy(io.Discard, os.NewFile(attachedFD, "attached"))
			s.log.Info("the caller has ended")
			os.Exit(0) // and all processes with this one
		}()
	}
	socket, err := s.up(context.Background())
	if err != nil {
		s.log.Error("cluster does not come up", "err", err)
		fmt.Fprint(status, err)
		return err
	}
	fmt.Fprint(status, "ok")
	status.Close()
	return s.serve(socket)
}

// up brings all of the cluster up, and listens for requests.
func (s *supervisor) up(ctx context.Context) (net.Listener, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if err := s.config.makeSwitch(); err != nil {
		return nil, err
	}
	for _, n := range s.config.nodes() {
		if err := s.config.plugIn(n); err != nil {
			return nil, err
		}
		s.machines = append(s.machines, &machine{
			Node: n, config: s.config, groups: s.groups.child(n.Name), log: s.log.With("node", n.Name),
		})
	}
	var err error
	s.controlPlane, err = controlplane.New(s.config.controlPlane(s.config.netns(s.machines[0].Name)))
	if err != nil {
		return nil, err
	}
	if err := s.forward(); err != nil {
		return nil, err
	}
	work, within := errgroup.WithContext(ctx)
	work.Go(func() error {
		if err := s.controlPlane.Start(within); err != nil {
			return err
		}
		s.log.Info("the control plane runs")
		return nil
	})
	work.Go(func() error {
		first, others := s.machines[0], s.machines[1:]
		if err := first.boot(within, s.controlPlane); err != nil {
			return err
		}
		s.log.Info("the first node has the images")
		if err := first.share(within, others); err != nil {
			return err
		}
		for _, m := range others {
			work.Go(func() error { return m.boot(within, s.controlPlane) })
		}
		return nil
	})
	if err := work.Wait(); err != nil {
		return nil, err
	}
	s.log.Info("all nodes are on")
	for _, m := range s.machines {
		if err := m.join(); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", socketFile(s.config.Dir))
}

// prepare makes what the cluster has of its own: mounts that nobody else sees,
// and control groups.
func (s *supervisor) prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	if err := mount("proc", "/proc", "proc", safe, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", s.config.memory(), "tmpfs", unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if err := mount("tmpfs", filepath.Join(s.config.controlPlaneDir(), "etcd"), "tmpfs", safe, "mode=700"); err != nil {
		return err
	}
	if err := os.MkdirAll(s.config.namespaces(), 0o755); err != nil {
		return err
	}
	var err error
	if s.groups, err = clusterGroups(s.config.Name); err != nil {
		return err
	}
	own := s.groups.child("controlplane")
	machine := groups{s.groups.Hierarchies, ""}
	if err := errors.Join(s.groups.make(), machine.offer(), s.groups.offer(), own.make()); err != nil {
		return err
	}
	return own.enter()
}

// forward makes the API server answer on the machine's loopback address, and
// writes the kubeconfig that says where.
func (s *supervisor) forward() error {
	var err error
	s.listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.config.Port))
	if err != nil {
		return fmt.Errorf("the API server's port on the machine: %w", err)
	}
	b, err := s.controlPlane.PKI().Kubeconfig("https://"+s.listener.Addr().String(), "admin", "system:masters")
	if err != nil {
		return err
	}
	if err := os.WriteFile(kubeconfigFile(s.config.Dir), b, 0o600); err != nil {
		return err
	}
	go func() {
		for {
			from, err := s.listener.Accept()
			if err != nil {
				s.log.Error("the API server is no longer forwarded", "err", err)
				return
			}
			go s.relay(from)
		}
	}()
	return nil
}

// relay carries a connection to the API server.
func (s *supervisor) relay(from net.Conn) {
	defer from.Close()
	address := s.controlPlane.Server()[len("https://"):]
	to, err := s.controlPlane.Dial(context.Background(), "tcp", address)
	if err != nil {
		return // the client sees its connection end, as it would there
	}
	defer to.Close()
	var both sync.WaitGroup
	for _, c := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			io.Copy(c[0], c[1])
			c[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}

// request is what a client asks of the supervisor.
type request struct {
	Verb string
	// Node is a node's name, or ControlPlane.
	Node    string   `json:",omitempty"`
	Program string   `json:",omitempty"`
	Images  []string `json:",omitempty"`
}

// response is the answer. A request that failed has an error, and nothing else.
type response struct {
	Error  string `json:",omitempty"`
	Status *Status
}

// serve answers requests: one for each connection.
func (s *supervisor) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var r request
			if err := json.NewDecoder(conn).Decode(&r); err != nil {
				return
			}
			go func() { // a client that goes away no longer wants it
				io.Copy(io.Discard, conn)
				cancel()
			}()
			var answer response
			if err := s.handle(ctx, r); err != nil {
				answer.Error = err.Error()
				s.log.Warn("request failed", "verb", r.Verb, "node", r.Node, "program", r.Program, "err", err)
			} else {
				s.log.Info("request done", "verb", r.Verb, "node", r.Node, "program", r.Program)
				answer.Status = s.status()
			}
			json.NewEncoder(conn).Encode(answer)
		}()
	}
}

func (s *supervisor) status() *Status {
	out := &Status{Nodes: make(map[string]NodeStatus), ControlPlane: make(map[string]int)}
	for _, c := range controlplane.Components() {
		out.ControlPlane[string(c)] = s.controlPlane.PID(c)
	}
	for _, m := range s.machines {
		out.Nodes[m.Name] = m.status()
	}
	return out
}
