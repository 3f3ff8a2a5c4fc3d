package cni

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/podlink"
)

// Resize has the interfaces of running pods take the MTU that Node.MTU says
// now, where the node's end or the journal has another. It does not wait.
func (s *Server) Resize() {
	select {
	case s.resized <- struct{}{}:
	default:
	}
}

// resize gives the pods' interfaces the MTU, after each call of Resize.
func (s *Server) resize(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.resized:
		}
		mtu := s.Node.MTU()
		if mtu == 0 {
			continue // it is not known just now, and what was said is so still
		}
		said := s.resizeAll(ctx, mtu)
		s.misfits.Store(said != "")
		s.Misfit(said)
	}
}

// toldPods is how many pods a message names.
const toldPods = 5

// resizeAll gives all pods' interfaces an MTU, and says which it could not.
func (s *Server) resizeAll(ctx context.Context, mtu int) string {
	there := map[string]int{}
	ends, err := podlink.List()
	if err != nil {
		return fmt.Sprintf("cannot see what MTU running pods have: %v", err)
	}
	for _, end := range ends {
		there[end.Name] = end.MTU
	}
	var names []string
	var reason error
	for _, a := range s.Journal.All() {
		have, ok := there[a.HostInterface]
		if !ok || a.Phase != ipam.Ready || have == mtu && a.MTU == mtu {
			continue
		}
		if err := s.resizeOne(ctx, a, mtu); err != nil {
			if reason == nil {
				reason = fmt.Errorf("its MTU is %d: %w", have, err)
			}
			name := a.Namespace + "/" + a.Pod
			if a.Pod == "" {
				name = "container " + a.ContainerID
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	names = slices.Compact(names) // a pod may have several interfaces
	more := ""
	if n := len(names) - toldPods; n > 0 {
		names, more = names[:toldPods], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("pods %s%s have not the MTU %d until they are restarted: %v", strings.Join(names, ", "), more, mtu, reason)
}

func (s *Server) resizeOne(ctx context.Context, a ipam.Attachment, mtu int) error {
	release, err := s.locks.acquire(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer release()
	if now, ok := s.Journal.Get(a.Key); !ok || now.ID != a.ID || s.link(a.Key) == 0 {
		return nil
	}
	a.MTU = mtu
	if err := podlink.Resize(linkSpec(a)); err != nil {
		return err
	}
	return s.Journal.Resize(a.Key, mtu)
}
