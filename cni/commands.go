package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// do does what c asks for. gone reports whether the client went away.
func (s *Server) do(ctx context.Context, c *call, gone func() bool) ([]byte, *protocol.Error) {
	switch c.command {
	case protocol.Status:
		switch err := s.Node.Ready(); {
		case errors.Is(err, ErrChanging):
			return nil, nil // a runtime would call the whole node not ready
		case err != nil:
			return nil, protocol.Errorf(protocol.NotAvailable, "%v", err)
		}
		return nil, s.hasNetwork(c.network)
	case protocol.GC:
		return nil, s.gc(ctx, c)
	}
	release, err := s.locks.acquire(ctx, c.key.ContainerID)
	if err != nil {
		return nil, protocol.Errorf(protocol.TryAgainLater, "another request for container %s is being worked on: %v", c.key.ContainerID, err)
	}
	defer release()
	// A runtime that gave this request up may have had its DEL answered
	// while this one waited: then nothing may be made any more.
	if gone() {
		return nil, protocol.Errorf(protocol.TryAgainLater, "%v", errGone)
	}
	switch c.command {
	case protocol.Add:
		a, failure := s.add(ctx, c)
		if failure != nil {
			return nil, failure
		}
		stdout, err := render(result(a), c.version)
		if err != nil {
			return nil, protocol.Errorf(protocol.IncompatibleVersion, "write the result in version %s: %v", c.version, err)
		}
		return stdout, nil
	case protocol.Del:
		return nil, s.del(c.key)
	default:
		return nil, s.check(c)
	}
}

// add makes a pod's interface, or goes on with what an agent before this one
// began.
func (s *Server) add(ctx context.Context, c *call) (ipam.Attachment, *protocol.Error) {
	var none ipam.Attachment
	if failure := checkNetNS(c.netns); failure != nil {
		return none, failure
	}
	a, known := s.Journal.Get(c.key)
	if known && a.ID != c.id {
		return none, protocol.Errorf(protocol.AttachmentExists, "container %s has %s with the address %s: DEL it first",
			c.key.ContainerID, c.key.IfName, a.Addresses[0])
	}
	// What an agent before this one began stays as it is until this one is
	// ready to go on.
	if err := s.Node.Ready(); err != nil {
		return none, protocol.Errorf(protocol.TryAgainLater, "%v", err)
	}
	if known && a.Phase == ipam.Pending && !isFrom(a, s.Node.Pools()) {
		// No runtime has heard of what pods get addresses of no more, and which may be
		// another node's by now: it is begun anew.
		if failure := s.remove(a.Key, a.HostInterface); failure != nil {
			return none, failure
		}
		known = false
	}
	if !known {
		if err := s.Node.Admit(c.namespace, c.pod, c.uid); err != nil {
			return none, protocol.Errorf(protocol.InvalidPod, "%v", err)
		}
		if failure := s.hasNetwork(c.network); failure != nil {
			return none, failure
		}
		secondary, failure := isSecondary(s.Journal.Of(c.key.ContainerID), c.network)
		if failure != nil {
			return none, failure
		}
		var prefixes []netip.Prefix
		if secondary {
			prefixes = s.Node.Prefixes(c.network)
		}
		for _, port := range c.ports {
			if what := s.Taken(port); what != "" {
				return none, protocol.Errorf(protocol.InvalidPod, "hostPort %d/%s is taken, %s: give the pod another", port.Node, strings.ToUpper(port.Protocol.String()), what)
			}
		}
		var err error
		a, err = s.Journal.Reserve(ipam.Request{
			Key: c.key, Network: c.network, Configuration: c.configuration, ID: c.id, NetNS: c.netns,
			PodName:       ipam.PodName{Namespace: c.namespace, Pod: c.pod, UID: c.uid},
			HostInterface: podlink.HostName(c.key.ContainerID, c.key.IfName), MTU: s.Node.MTU(),
			Ports: c.ports, Bandwidth: c.bandwidth, Secondary: secondary, Prefixes: prefixes,
		}, s.Node.Pools, s.Node.Has)
		switch {
		case errors.Is(err, ipam.ErrExhausted):
			return none, protocol.Errorf(protocol.AddressesExhausted, "%v", err)
		case errors.Is(err, ipam.ErrNoPools):
			return none, protocol.Errorf(protocol.TryAgainLater, "%v", err)
		case err != nil:
			return none, protocol.Errorf(protocol.JournalFailure, "%v", err)
		}
	}
	if failure := s.plumb(ctx, a); failure != nil {
		s.undo(a)
		return none, failure
	}
	if a.Phase == ipam.Pending {
		if err := s.Journal.Commit(a.Key); err != nil {
			s.undo(a)
			return none, protocol.Errorf(protocol.JournalFailure, "%v", err)
		}
	}
	if mtu := s.Node.MTU(); mtu != a.MTU && mtu != 0 || s.link(a.Key) == 0 {
		s.Fit() // it changed meanwhile, or the interface was elsewhere
	}
	return a, nil
}

// isFrom reports whether all addresses of an attachment are of some pools.
func isFrom(a ipam.Attachment, pools []plan.Pool) bool {
	return !slices.ContainsFunc(a.Addresses, func(ip netip.Addr) bool {
		return !slices.ContainsFunc(pools, func(p plan.Pool) bool { return p.Network == a.Network && p.Prefix.Contains(ip) })
	})
}

// hasNetwork says that the node has no network of a name; nil where it has.
func (s *Server) hasNetwork(name string) *protocol.Error {
	if all := s.Node.Networks(); !slices.Contains(all, name) {
		return protocol.Errorf(protocol.InvalidConfig, "network: there is no network %q on this node, only %s", name, strings.Join(all, ", "))
	}
	return nil
}

// isSecondary decides what a container's interface in a network leads to, where it
// has others already: all but the first lead to their own network alone. Two in one
// network would lead to the same, and what came in by one be answered by the other.
func isSecondary(others []ipam.Attachment, network string) (bool, *protocol.Error) {
	secondary := false
	for _, a := range others {
		if a.Network == network {
			return false, protocol.Errorf(protocol.InvalidConfig, "network: container %s has %s in network %s already: it can have one interface in each", a.ContainerID, a.IfName, network)
		}
		secondary = secondary || !a.Secondary
	}
	return secondary, nil
}

// plumb makes the interface of an attachment and has the data plane take it up.
func (s *Server) plumb(ctx context.Context, a ipam.Attachment) *protocol.Error {
	index, failure := s.ensure(a)
	if failure != nil {
		return failure
	}
	if s.link(a.Key) != index {
		s.replaced(a.Key)
	}
	if s.mayKnow(a.Key) {
		// Told of this one beside what it was told last, the data plane would take it for the
		// one that it knows, and leave it down.
		if err := s.letGo(ctx); err != nil {
			return unpublished(ctx, err)
		}
		// It sets down what it lets go of, also where that is back, which loses its IPv6 address by that.
		if index, failure = s.ensure(a); failure != nil {
			return failure
		}
	}
	s.setLink(a.Key, index)
	if err := s.Node.Publish(ctx, a.HostInterface); err != nil {
		return unpublished(ctx, err)
	}
	if err := podlink.Await(linkSpec(a)); err != nil {
		return protocol.Errorf(protocol.KernelFailure, "%v", err)
	}
	return nil
}

// ensure makes the interface of an attachment, or what is missing of it, and returns its index.
func (s *Server) ensure(a ipam.Attachment) (index int, failure *protocol.Error) {
	// The kernel makes interfaces one at a time, behind one lock; more callers
	// than processors only spin there.
	s.plumbing <- struct{}{}
	index, err := podlink.Ensure(linkSpec(a))
	<-s.plumbing
	if err != nil {
		code := protocol.KernelFailure
		if errors.Is(err, podlink.ErrNameTaken) {
			code = protocol.InterfaceExists
		}
		return 0, protocol.Errorf(code, "%v", err)
	}
	return index, nil
}

// unpublished says that the data plane does not do what an ADD needs.
func unpublished(ctx context.Context, err error) *protocol.Error {
	switch {
	case ctx.Err() != nil:
		// Not least because this agent is being replaced by another.
		return protocol.Errorf(protocol.TryAgainLater, "%v: %v", context.Cause(ctx), err)
	case errors.Is(err, ErrChanging):
		return protocol.Errorf(protocol.TryAgainLater, "%v", err)
	}
	return protocol.Errorf(protocol.DataPlaneFailure, "%v", err)
}

// undo takes an attachment away after an ADD that failed. What cannot be
// taken away now stays pending, and sweep tries again.
func (s *Server) undo(a ipam.Attachment) {
	if failure := s.remove(a.Key, a.HostInterface); failure != nil {
		s.Log.Warn("an ADD that failed is not undone yet", "container", a.ContainerID, "interface", a.IfName, "error", failure)
	}
}

// del removes a pod's interface, also one that no record tells of.
func (s *Server) del(k ipam.Key) *protocol.Error {
	return s.remove(k, podlink.HostName(k.ContainerID, k.IfName))
}

// remove removes an interface and then, never before, frees its addresses.
func (s *Server) remove(k ipam.Key, hostInterface string) *protocol.Error {
	had := s.link(k)
	s.setLink(k, 0)
	if err := podlink.Remove(hostInterface, had); err != nil {
		s.setLink(k, had)
		return protocol.Errorf(protocol.KernelFailure, "%v", err)
	}
	if had != 0 {
		s.mu.Lock()
		s.leave(k)
		s.mu.Unlock()
		s.nudge()
	}
	if err := s.Journal.Release(k); err != nil {
		return protocol.Errorf(protocol.JournalFailure, "%v", err)
	}
	if s.misfits.Load() {
		s.Fit() // of fewer pods there is less to say
	}
	return nil
}

// check compares what is there with what the runtime remembers.
func (s *Server) check(c *call) *protocol.Error {
	a, ok := s.Journal.Get(c.key)
	if !ok || a.Phase != ipam.Ready {
		return protocol.Errorf(protocol.UnknownContainer, "container %s has no attachment %s on this node", c.key.ContainerID, c.key.IfName)
	}
	if failure := checkNetNS(c.netns); failure != nil {
		return failure
	}
	// The path may differ from that of ADD where it leads to the same.
	a.NetNS = c.netns
	if a.Unidentified && c.pod != "" {
		// The runtime knows what the node has forgotten.
		if err := s.Identify(a.Key, ipam.PodName{Namespace: c.namespace, Pod: c.pod, UID: c.uid}); err != nil {
			return protocol.Errorf(protocol.JournalFailure, "%v", err)
		}
	}
	if a.Network != c.network {
		return protocol.Errorf(protocol.CheckFailed, "%s is in network %s and not in %s", a.IfName, a.Network, c.network)
	}
	if err := errors.Join(compareResult(c.prevResult, a), podlink.Check(linkSpec(a))); err != nil {
		return protocol.Errorf(protocol.CheckFailed, "%v", err)
	}
	return nil
}

// gc removes every attachment of the configuration that the runtime does not name.
// An ADD that is being worked on is not the runtime's to name yet.
func (s *Server) gc(ctx context.Context, c *call) *protocol.Error {
	var errs []error
	for _, a := range s.Journal.All() {
		if a.Configuration != c.configuration || a.Phase != ipam.Ready || c.valid[a.Key] {
			continue
		}
		if err := s.collect(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.Key, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return protocol.Errorf(protocol.KernelFailure, "%v", err)
	}
	return nil
}

func (s *Server) collect(ctx context.Context, a ipam.Attachment) error {
	release, err := s.locks.acquire(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer release()
	if now, ok := s.Journal.Get(a.Key); !ok || now.ID != a.ID {
		return nil
	}
	if err := s.removeUnknown(a); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collected = append(s.collected, a)
	return nil
}

// Collected returns the attachments that GC has taken away since the last call.
func (s *Server) Collected() []ipam.Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.collected
	s.collected = nil
	return all
}

// Attachments returns all that the node has a record of.
func (s *Server) Attachments() []ipam.Attachment {
	s.Recover()
	return s.Journal.All()
}

// Lost returns the attachments that a runtime was told are ready and whose
// interface is gone, as it is when the pod's network namespace is. DEL should
// come for them.
func (s *Server) Lost() []ipam.Attachment {
	s.Recover()
	return slices.DeleteFunc(s.Journal.All(), func(a ipam.Attachment) bool { return a.Phase != ipam.Ready || s.link(a.Key) != 0 })
}

// Forget frees the addresses of an attachment that Lost returned, for which no
// DEL will come. It leaves one alone whose interface is there after all.
func (s *Server) Forget(ctx context.Context, a ipam.Attachment) error {
	release, err := s.locks.acquire(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer release()
	if now, ok := s.Journal.Get(a.Key); !ok || now.ID != a.ID || now.Phase != ipam.Ready || s.link(a.Key) != 0 {
		return nil
	}
	if there, err := podlink.Exists(a.HostInterface); err != nil || there {
		return err
	}
	return s.removeUnknown(a)
}

func (s *Server) removeUnknown(a ipam.Attachment) error {
	if failure := s.remove(a.Key, a.HostInterface); failure != nil {
		return failure
	}
	s.Log.Info("removed an attachment that the runtime no longer knows", "container", a.ContainerID, "interface", a.IfName)
	return nil
}

func checkNetNS(path string) *protocol.Error {
	err := podlink.CheckNetNS(path)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		// The code tells the runtime that there is nothing to clean up.
		return protocol.Errorf(protocol.UnknownContainer, "CNI_NETNS: %v", err)
	}
	return protocol.Errorf(protocol.InvalidEnvironment, "CNI_NETNS: %v", err)
}
