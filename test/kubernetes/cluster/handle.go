package cluster

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// The verbs of requests. The last ones are for a program.
const (
	verbStatus    = "status"
	verbLoad      = "load"
	verbKillNode  = "kill node"
	verbStartNode = "start node"
	verbKill      = "kill"
	verbStop      = "stop"
	verbStart     = "start"
	verbPause     = "pause"
	verbResume    = "resume"
)

// handle does what a request asks for.
func (s *supervisor) handle(ctx context.Context, r request) error {
	switch r.Verb {
	case verbStatus:
		return nil
	case verbLoad:
		return s.load(ctx, r.Images)
	}
	if r.Node == ControlPlane {
		return s.handleComponent(ctx, r.Verb, controlplane.Component(r.Program))
	}
	for _, m := range s.machines {
		if m.Name == r.Node {
			return s.handleNode(ctx, r, m)
		}
	}
	return fmt.Errorf("there is no node %q: there are node1 to node%d, and %s", r.Node, len(s.machines), ControlPlane)
}

func (s *supervisor) handleNode(ctx context.Context, r request, m *machine) error {
	switch r.Verb {
	case verbKillNode:
		return m.kill()
	case verbStartNode:
		return s.startNode(ctx, m)
	}
	p, err := m.program(r.Program)
	if err != nil {
		return err
	}
	switch r.Verb {
	case verbKill:
		err = p.signal(syscall.SIGKILL)
	case verbStop:
		p.stop(patience)
	case verbStart:
		err = p.run()
	case verbPause:
		err = p.pause()
	case verbResume:
		err = p.signal(syscall.SIGCONT)
	default:
		err = fmt.Errorf("unknown request %q", r.Verb)
	}
	if err != nil {
		return fmt.Errorf("%s %s on %s: %w", r.Verb, r.Program, m.Name, err)
	}
	return nil
}

func (s *supervisor) handleComponent(ctx context.Context, verb string, c controlplane.Component) error {
	switch verb {
	case verbKill:
		return s.controlPlane.Kill(c)
	case verbStop:
		return s.controlPlane.Terminate(c)
	case verbStart:
		return s.controlPlane.Restart(ctx, c)
	case verbPause:
		return s.controlPlane.Pause(c)
	case verbResume:
		return s.controlPlane.Resume(c)
	default:
		return fmt.Errorf("%s: not for %s", verb, ControlPlane)
	}
}

// startNode boots a node that was killed: with its disk as it was, an empty
// /run, and nothing in its network namespace but the link.
func (s *supervisor) startNode(ctx context.Context, m *machine) error {
	m.power.Lock()
	defer m.power.Unlock()
	if m.status().Init != 0 {
		return fmt.Errorf("%s is on already", m.Name)
	}
	if m == s.machines[0] {
		// The control plane is in it.
		if err := s.config.wipe(m.Node); err != nil {
			return err
		}
	} else {
		if err := dropNamespace(s.config.netns(m.Name)); err != nil {
			return err
		}
		if err := s.config.plugIn(m.Node); err != nil {
			return err
		}
	}
	if err := m.boot(ctx, s.controlPlane); err != nil {
		return err
	}
	return m.join()
}

// load makes images known to all nodes that are on. Nodes that are booted later
// have them on their disks only if they were on.
func (s *supervisor) load(ctx context.Context, tars []string) error {
	work, ctx := errgroup.WithContext(ctx)
	for _, m := range s.machines {
		m.mu.Lock()
		init := m.init
		m.mu.Unlock()
		if init != nil {
			work.Go(func() error { return m.load(ctx, init, tars) })
		}
	}
	return work.Wait()
}
