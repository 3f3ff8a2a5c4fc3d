package cni

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/internal/rtnetlink"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/podlink"
)

// Recover makes the journal and the kernel agree, once. Records whose
// interface vanished stay until DEL or GC, but are not endpoints. Interfaces
// without a record, which there are only when the journal was lost or
// damaged, are taken up again from what their alias says, so that their
// addresses are not given to others; whose they are the alias says, too, or it
// is to be found out (Identify). One whose alias says nothing was never ready
// and is removed. Nothing is done to other interfaces. Endpoints and Serve call
// it if nobody did.
func (s *Server) Recover() {
	s.recovery.Do(func() {
		if err := s.Journal.Damage(); err != nil {
			s.Log.Error("the journal of addresses was damaged", "error", err)
		}
		ends, err := podlink.List()
		for err != nil {
			// Guessing would cut off pods or give their addresses away.
			s.Log.Error("cannot see which pods have interfaces; trying again", "error", err)
			time.Sleep(time.Second)
			ends, err = podlink.List()
		}
		recorded := map[string]ipam.Key{}
		for _, a := range s.Journal.All() {
			recorded[a.HostInterface] = a.Key
		}
		// In the order in which they came, which counts among pods that ask for one port.
		slices.SortFunc(ends, func(a, b podlink.HostEnd) int { return cmp.Compare(a.Index, b.Index) })
		for _, end := range ends {
			if k, ok := recorded[end.Name]; ok {
				s.setLink(k, end.Index)
				continue
			}
			if err := s.adopt(end); err == nil {
				s.Log.Warn("took up a pod's interface that the journal does not tell of", "interface", end.Name, "alias", end.Alias)
				continue
			} else if err := errors.Join(err, podlink.Remove(end.Name, end.Index)); err != nil {
				s.Log.Warn("removed a pod's interface that nobody knows", "interface", end.Name, "reason", err)
			}
		}
	})
}

func (s *Server) adopt(end podlink.HostEnd) error {
	stamp, err := podlink.ParseStamp(end.Alias)
	if err != nil {
		return err
	}
	a := ipam.Attachment{
		Request: ipam.Request{Key: ipam.Key{ContainerID: stamp.ContainerID, IfName: stamp.Interface},
			Network: stamp.Network, Configuration: stamp.Configuration, HostInterface: end.Name, MTU: end.MTU, Unidentified: true, Unrecorded: true},
		Addresses: stamp.Addresses, Phase: ipam.Ready, Created: time.Now().UTC().Round(0),
	}
	if o := stamp.Owner; o != nil {
		a.PodName = ipam.PodName{Namespace: o.Namespace, Pod: o.Pod, UID: o.UID}
		// One that has a UID alone had no room for the names.
		a.Unidentified = a.Pod == "" && a.UID != ""
	}
	if err := s.Journal.Adopt(a); err != nil {
		return err
	}
	s.setLink(a.Key, end.Index)
	return nil
}

// Unidentified returns the attachments of which it is not known whose they are:
// those that Recover took up from an alias which does not say. Their interfaces
// are endpoints, and policies hold them to be anyone's.
func (s *Server) Unidentified() []ipam.Attachment {
	s.Recover()
	return slices.DeleteFunc(s.Journal.All(), func(a ipam.Attachment) bool { return !a.Unidentified })
}

// Unrecorded returns the attachments of which it is not known what was asked for them: those that
// Recover took up.
func (s *Server) Unrecorded() []ipam.Attachment {
	s.Recover()
	return slices.DeleteFunc(s.Journal.All(), func(a ipam.Attachment) bool { return !a.Unrecorded })
}

// Identify takes note of whose an attachment is that Unidentified returned. One
// that is gone, or known by now, stays as it is.
func (s *Server) Identify(k ipam.Key, p ipam.PodName) error {
	if a, ok := s.Journal.Get(k); !ok || !a.Unidentified {
		return nil
	}
	if err := s.Journal.Identify(k, p); err != nil {
		return err
	}
	s.Log.Info("found out whose an attachment is", "container", k.ContainerID, "interface", k.IfName, "pod", p.Namespace+"/"+p.Pod)
	s.nudge()
	return nil
}

// sweep rolls back what was begun and never finished, when weft-cni has
// surely stopped asking for it.
func (s *Server) sweep(ctx context.Context) {
	for retry.Sleep(ctx, s.RetryWindow/4) {
		for _, a := range s.Journal.All() {
			if a.Phase == ipam.Pending && time.Since(a.Created) > s.RetryWindow {
				s.rollBack(ctx, a)
			}
		}
	}
}

func (s *Server) rollBack(ctx context.Context, a ipam.Attachment) {
	release, err := s.locks.acquire(ctx, a.ContainerID)
	if err != nil {
		return
	}
	defer release()
	if now, ok := s.Journal.Get(a.Key); !ok || now.ID != a.ID || now.Phase != ipam.Pending {
		return
	}
	s.undo(a)
	s.Log.Info("rolled back an ADD that was never finished", "container", a.ContainerID, "interface", a.IfName)
}

// watchLinks takes note of interfaces that vanish, as all do whose network
// namespace is removed, and of those that are not as they ought to be, or come back.
func (s *Server) watchLinks(ctx context.Context) {
	for ctx.Err() == nil {
		socket, err := rtnetlink.Subscribe(rtnetlink.Links(), unix.RTNLGRP_LINK)
		if err != nil {
			s.Log.Warn("cannot watch interfaces", "error", err)
			if !retry.Sleep(ctx, time.Second) {
				return
			}
			continue
		}
		stop := context.AfterFunc(ctx, socket.Close)
		// What vanished or changed before the subscription, or while it was lost.
		s.compareLinks()
		s.Fit()
		s.takeUpdates(ctx, socket)
		if stop() {
			socket.Close()
		}
	}
}

// takeUpdates returns when the subscription fails, not least because more was
// told than it can hold.
func (s *Server) takeUpdates(ctx context.Context, socket *nl.NetlinkSocket) {
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			if ctx.Err() == nil {
				s.Log.Debug("lost sight of interfaces for a moment", "error", err)
			}
			return
		}
		if from.Pid != nl.PidKernel {
			continue
		}
		for _, m := range messages {
			if len(m.Data) < unix.SizeofIfInfomsg {
				continue
			}
			told := int(nl.DeserializeIfInfomsg(m.Data).Index)
			switch m.Header.Type {
			case unix.RTM_DELLINK:
				s.vanished(func(_ ipam.Key, index int) bool { return index == told })
			case unix.RTM_NEWLINK:
				if attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:]); err == nil && s.unfit(told, attributes) {
					s.Fit()
				}
			}
		}
	}
}

// compareLinks takes note of what is there now.
func (s *Server) compareLinks() {
	s.mu.Lock()
	before := maps.Clone(s.links)
	s.mu.Unlock()
	ends, err := podlink.List()
	if err != nil {
		s.Log.Warn("cannot see which pods have interfaces", "error", err)
		return
	}
	there := make(map[int]bool, len(ends))
	for _, end := range ends {
		there[end.Index] = true
	}
	// One that was made since is in neither list.
	s.vanished(func(k ipam.Key, index int) bool { return before[k] == index && !there[index] })
}

// vanished forgets the interfaces that is says yes to.
func (s *Server) vanished(is func(k ipam.Key, index int) bool) {
	s.mu.Lock()
	before := s.removals
	maps.DeleteFunc(s.links, func(k ipam.Key, index int) bool {
		yes := is(k, index)
		if yes {
			s.leave(k)
		}
		return yes
	})
	changed := s.removals != before
	s.mu.Unlock()
	if changed {
		s.nudge()
	}
}
