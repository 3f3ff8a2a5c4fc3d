package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink/nl"

	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// Fit has the interfaces of running pods be as they ought to be where the node's end, or
// the journal, says that they are not: with the MTU that Node.MTU says now, with the MAC
// address that the pod knows, and for IPv6 the address of its next hop. One that was elsewhere
// and is back is an endpoint again, and has what it lost there. What cannot be put right is
// tried again, ever less often. It does not wait.
//
// Of a pod that Recover took up from an alias less is known. It keeps its MTU, and gets that
// MAC address back that rightMAC finds.
func (s *Server) Fit() {
	select {
	case s.unfitted <- struct{}{}:
	default:
	}
}

// fitRest is how long nothing is put right after something was, so that whoever wants
// something else keeps neither the node nor its log busy.
const fitRest = time.Second

// fitAtLatest is how long what could not be put right is left alone, at most.
const fitAtLatest = time.Minute

// fit puts the pods' interfaces right, at once and after each call of Fit.
func (s *Server) fit(ctx context.Context) {
	loop := retry.Loop{Changed: s.unfitted, Backoff: retry.Backoff{First: fitRest, Last: fitAtLatest}}
	loop.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		mtu := s.Node.MTU()
		restored, said := s.fitAll(ctx, mtu)
		if mtu != 0 { // else it is not known just now, and what was said is so still
			s.misfits.Store(said != "")
			s.Misfit(said)
		}
		if restored {
			retry.Sleep(ctx, fitRest)
		}
		if said != "" {
			return 0, errors.New(said)
		}
		return 0, nil
	})
}

// unfit reports whether what the kernel tells of an interface is a reason for Fit: it has
// another MAC address than a pod knows, or is that of a running pod that had none.
func (s *Server) unfit(index int, attributes []syscall.NetlinkRouteAttr) bool {
	var key ipam.Key
	s.mu.Lock()
	for k, i := range s.links {
		if i == index {
			key = k
		}
	}
	s.mu.Unlock()
	known := key != ipam.Key{}
	var mac plan.MAC
	for _, a := range attributes {
		switch {
		case a.Attr.Type == unix.IFLA_ADDRESS && len(a.Value) == len(mac):
			mac = plan.MAC(a.Value)
		case a.Attr.Type == unix.IFLA_IFALIAS && !known:
			if stamp, err := podlink.ParseStamp(nl.BytesToString(a.Value)); err == nil {
				key = ipam.Key{ContainerID: stamp.ContainerID, IfName: stamp.Interface}
			}
		}
	}
	a, ok := s.Journal.Get(key)
	switch {
	case !ok:
		return false
	case known:
		right := s.rightMAC(a, mac)
		return !right.IsZero() && !mac.IsZero() && mac != right
	}
	// A request that is under way for the container may be about another of its interfaces.
	return a.Phase == ipam.Ready && s.link(key) == 0
}

// rightMAC returns the MAC address that the node's end of an attachment's interface ought to
// have, which has the address has now; zero where nothing tells. The journal does not say it of
// one that Recover took up. As all of a network have the same, it is then the one after the
// gateway of the network's primary pool, if the node still gives out such addresses. Which pool
// is the primary may have changed since, so one after another gateway is right as well.
func (s *Server) rightMAC(a ipam.Attachment, has plan.MAC) (right plan.MAC) {
	if known := linkSpec(a).HostMAC; !known.IsZero() {
		return known
	}
	pools := s.Node.Pools()
	if !isFrom(a, pools) {
		return plan.MAC{}
	}
	for _, p := range pools {
		if p.Network != a.Network {
			continue
		}
		mac := plan.MACOf(p.Gateway)
		if mac == has {
			return has
		}
		if right.IsZero() {
			right = mac
		}
	}
	return right
}

// fitPatience is how long it may take to put one interface right. The others wait meanwhile.
const fitPatience = 3 * time.Second

// toldPods is how many pods a message names.
const toldPods = 5

// misfits are pods of whose interfaces something could not be put right, and why that of
// the first could not.
type misfits struct {
	names  []string
	reason error
}

func (m *misfits) add(a ipam.Attachment, reason error) {
	if m.reason == nil {
		m.reason = reason
	}
	name := a.Namespace + "/" + a.Pod
	if a.Pod == "" {
		name = "container " + a.ContainerID
	}
	m.names = append(m.names, name)
}

// say says what is so of them, or nothing of none.
func (m *misfits) say(what string) string {
	if len(m.names) == 0 {
		return ""
	}
	slices.Sort(m.names)
	names := slices.Compact(m.names) // a pod may have several interfaces
	more := ""
	if n := len(names) - toldPods; n > 0 {
		names, more = names[:toldPods], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("pods %s%s %s: %v", strings.Join(names, ", "), more, what, m.reason)
}

// fitAll puts all pods' interfaces right, reports whether there was more to do than to give
// them an MTU, and says of which it could not. Of MTU 0 nothing is known.
func (s *Server) fitAll(ctx context.Context, mtu int) (restored bool, said string) {
	there := map[string]podlink.HostEnd{}
	ends, err := podlink.List()
	if err != nil {
		return false, fmt.Sprintf("cannot see what interfaces running pods have: %v", err)
	}
	for _, end := range ends {
		there[end.Name] = end
	}
	// A data plane that hangs is waited for once, and not for each interface.
	var hangs error
	letGo := func(ctx context.Context) error {
		if hangs == nil {
			hangs = s.letGo(ctx)
		}
		return hangs
	}
	var wrong, sized misfits
	for _, a := range s.Journal.All() {
		end, ok := there[a.HostInterface]
		if !ok {
			continue
		}
		spec := linkSpec(a)
		spec.HostMAC = s.rightMAC(a, end.MAC)
		known := s.link(a.Key) != 0
		back := !known && a.Phase == ipam.Ready && end.Alias != ""
		if back || known && !spec.Whole(end) {
			restored = true
			if err := s.fitOne(ctx, a, func(ctx context.Context) error { return s.restore(ctx, a, spec, letGo) }); err != nil {
				s.Log.Warn("cannot put a pod's interface right", "interface", a.HostInterface, "error", err)
				wrong.add(a, err)
			}
		}
		if a.Phase != ipam.Ready || mtu == 0 || end.MTU == mtu && a.MTU == mtu {
			continue
		}
		if err := s.fitOne(ctx, a, func(context.Context) error { return s.resize(a, mtu) }); err != nil {
			sized.add(a, fmt.Errorf("its MTU is %d: %w", end.MTU, err))
		}
	}
	all := []string{wrong.say("may have no network until the node's ends of their interfaces are as they were"),
		sized.say(fmt.Sprintf("have not the MTU %d until they are restarted", mtu))}
	return restored, strings.Join(slices.DeleteFunc(all, func(said string) bool { return said == "" }), "; ")
}

// fitOne calls f, which puts an attachment's interface right, once no request is about its
// container. It is an error where that takes longer than fitPatience.
func (s *Server) fitOne(ctx context.Context, a ipam.Attachment, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fitPatience, fmt.Errorf("not within %v, it is tried again", fitPatience))
	defer cancel()
	release, err := s.locks.acquire(ctx, a.ContainerID)
	if err != nil {
		return fmt.Errorf("wait for the request that is about container %s: %w", a.ContainerID, err)
	}
	defer release()
	if now, ok := s.Journal.Get(a.Key); !ok || now.ID != a.ID || now.Phase != ipam.Ready {
		return nil
	}
	return f(ctx)
}

// restore puts the node's end of an attachment's interface right. One that was gone and is
// back is taken up as a new one is, once letGo has had the data plane let go of it.
func (s *Server) restore(ctx context.Context, a ipam.Attachment, spec podlink.Spec, letGo func(context.Context) error) error {
	had := s.link(a.Key) // if that goes from here on, its return is heard of
	if s.mayKnow(a.Key) {
		// As one that is made anew, see plumb. A data plane sets down what it lets go of, and
		// an interface that is set down loses its IPv6 address. So this comes first.
		if err := letGo(ctx); err != nil {
			return err
		}
	}
	index, err := podlink.Restore(spec)
	switch {
	case errors.Is(err, syscall.ENODEV):
		return nil // who misses it tells of that
	case err != nil:
		return err
	}
	s.Log.Warn("put right what others changed of a pod's interface", "interface", a.HostInterface, "container", a.ContainerID)
	if had == index {
		return nil
	}
	s.setLink(a.Key, index)
	s.nudge()
	return nil
}

func (s *Server) resize(a ipam.Attachment, mtu int) error {
	if s.link(a.Key) == 0 {
		return nil
	}
	a.MTU = mtu
	if err := podlink.Resize(linkSpec(a)); err != nil {
		return err
	}
	return s.Journal.Resize(a.Key, mtu)
}
