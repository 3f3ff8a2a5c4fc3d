package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/nftables"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

const (
	// settling is how long after a change connections are judged. By then no
	// packet is on its way that met the rules of before.
	settling = 50 * time.Millisecond
	// spacing is the least time from the begin of one sweep to that of the next. Each costs what the
	// kernel's table is large, whatever changed; still no connection may outlive
	// its permission by a second. Where a sweep takes so long that it would follow the last one at once, it rests
	// for as long as that took: backends leave somewhere all the time.
	spacing = 700 * time.Millisecond
	// sweepRetry is how long after an error they are judged again.
	sweepRetry = time.Second
	// endedTimeout is how long the rest of a connection is told from a new
	// one. The side that knows nothing yet asks after two hours of silence
	// (tcp_keepalive_time), and gives up some minutes later.
	endedTimeout = 3 * time.Hour
	// lateTimeout is how long the answer to a datagram may be on its way. It is as
	// long as the kernel waits for one (nf_conntrack_udp_timeout).
	lateTimeout = 30 * time.Second
)

// sweeper ends connections that a plan forbids, in the background.
type sweeper struct {
	in  func(func() error) error
	log *slog.Logger
	// table is that of policies, and lock is held by who writes it.
	table string
	lock  sync.Locker
	// enforced is the plan that the policy table is for, while nobody writes it.
	enforced *atomic.Pointer[plan.Plan]

	ender   *conntrack.Ender
	plan    atomic.Pointer[plan.Plan]
	wake    chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	stopped chan struct{}
	// left are the backends that left Services of late, and next is when a connection ends, unless its
	// backend is back; 0 where none waits for that.
	left departures
	next time.Time
	// serves says that there were Services, of which there may be connections.
	serves bool
	// resumed says that what an agent before this one ended is seen to.
	resumed bool
}

func startSweeper(in func(func() error) error, log *slog.Logger, table string, lock sync.Locker, enforced *atomic.Pointer[plan.Plan]) *sweeper {
	s := &sweeper{in: in, log: log, table: table, lock: lock, enforced: enforced, wake: make(chan struct{}, 1), ender: conntrack.StartEnder(in, log), stopped: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go s.run()
	return s
}

// judge makes p the plan that connections are judged by, and, if it may forbid
// some that were allowed, has them judged.
func (s *sweeper) judge(p *plan.Plan, forbids bool) {
	s.plan.Store(p)
	if !forbids {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sweeper) close() {
	s.cancel()
	<-s.stopped
	s.ender.Close()
}

func (s *sweeper) run() {
	defer close(s.stopped)
	var rested time.Time // when the next sweep may begin
	var due <-chan time.Time
	for {
		select {
		case <-s.wake:
		case <-due:
		case <-s.ctx.Done():
			return
		}
		for wait := max(settling, time.Until(rested)); wait > 0; {
			select {
			case <-time.After(wait):
			case <-s.ctx.Done():
				return
			}
			began := time.Now()
			wait, due = 0, nil
			if err := s.in(func() error { return s.sweep(s.plan.Load()) }); err != nil {
				s.log.Warn("connections that are denied may go on for now", "error", err)
				wait = sweepRetry
			} else if !s.next.IsZero() {
				due = time.After(time.Until(s.next))
			}
			rested = nextSweep(began, time.Now())
		}
	}
}

// nextSweep returns when a sweep may follow one that began and ended then.
func nextSweep(began, ended time.Time) time.Time {
	next := began.Add(spacing)
	if over := ended.Add(ended.Sub(began)); over.After(next) {
		next = over
	}
	return next
}

// condemned is a connection that is to end: as it is denied, or as its backend is none.
type condemned struct {
	of       judge.Connection
	denied   bool
	handle   []byte
	leftover conntrack.Leftover
}

// isTold reports whether its sides are told that a connection has ended. Of one that is over a side may have
// begun another by now, with the same addresses and ports: to tell it would end that. So it would where nobody
// has answered and the client may connect: it repeats what began the connection, and is given a backend. Who waits
// for an answer to a datagram asks again the sooner for it.
func (c condemned) isTold() bool {
	return !c.of.Over && (c.denied || !c.of.Unanswered || c.of.Protocol == plan.UDP)
}

// sweep ends the connections that a plan forbids, and those whose backend is none any more.
func (s *sweeper) sweep(p *plan.Plan) error {
	now := time.Now()
	s.left.forget(now)
	s.next = time.Time{}
	if p == nil {
		return nil
	}
	policed := judge.Needed(p)
	if !policed && p.Services.Len() == 0 && !s.serves && s.resumed {
		return nil
	}
	s.serves = s.serves || p.Services.Len() > 0
	before, err := s.before()
	if err != nil {
		return err
	}
	if len(before) == 0 && conntrack.NoneTracked() {
		s.resumed = true
		return nil
	}
	addresses, err := rtnl.LocalAddresses()
	if err != nil {
		return err
	}
	t, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer t.Close()
	own := make([]plan.Address, len(addresses))
	for i, a := range addresses {
		own[i] = plan.Address{Network: plan.DefaultNetwork, IP: a}
	}
	j := judge.NewJury(p, own)
	var doomed []condemned
	var broken error
	err = t.List(func(c conntrack.Connection, entry []byte) {
		// What is tracked has begun anew since, or is ended once more.
		delete(before, endedKey(c.Source, c.Destination, c.Protocol))
		delete(before, endedKey(c.Destination, c.Source, c.Protocol))
		tag, tagged := tagIn(c.Label[:])
		of := judge.Connection{Network: plan.DefaultNetwork, Protocol: c.Protocol, Source: c.Source, Destination: c.Destination, Dialled: c.Dialled,
			Tag: tag, Tagged: tagged, Served: servedIn(c.Label[:]), Unanswered: c.Unanswered, Over: c.Over}
		denied := policed && j.Forbids(of)
		if !denied && !j.Unserved(of) {
			return
		}
		if !denied {
			if ends := s.left.endsAt(j, of, now); ends.After(now) {
				if s.next.IsZero() || ends.Before(s.next) {
					s.next = ends
				}
				return
			}
		}
		handle, err := conntrack.HandleOf(entry)
		broken = errors.Join(broken, err)
		doomed = append(doomed, condemned{of, denied, handle, c.Leftover()})
	})
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	doomed = s.still(doomed, p, own)
	ended := conntrack.Lot{Plan: p, Network: plan.DefaultNetwork}
	for _, is4 := range interval.Families {
		rest, late := nft.Elements{}, nft.Elements{}
		for _, d := range doomed {
			// What the sender of the others repeats gets another backend, or is refused.
			if c := d.of; d.denied && c.Source.Addr().Is4() == is4 {
				switch c.Protocol {
				case plan.TCP, plan.SCTP:
					rest[nft.Element{Key: endedKey(c.Source, c.Destination, c.Protocol)}] = nft.Value{}
					rest[nft.Element{Key: endedKey(c.Destination, c.Source, c.Protocol)}] = nft.Value{}
				case plan.UDP:
					late[nft.Element{Key: endedKey(c.Destination, c.Source, c.Protocol)}] = nft.Value{}
				}
			}
		}
		// What is left of them is refused before anything could begin anew.
		err := s.refuse(is4, rest, late)
		unpoliced := errors.Is(err, errUnpoliced)
		if err != nil && !unpoliced {
			return err
		}
		for _, d := range doomed {
			if d.of.Source.Addr().Is4() != is4 || d.denied && unpoliced {
				continue
			}
			was, err := t.Remove(is4, d.handle)
			if err != nil {
				return fmt.Errorf("end a connection: %w", err)
			}
			if was && d.isTold() {
				ended.Leftovers = append(ended.Leftovers, d.leftover)
			}
		}
	}
	if n := len(ended.Leftovers); n > 0 {
		s.log.Info("connections ended that are denied now, or have no backend any more", "count", n)
	}
	for _, l := range before {
		ended.Leftovers = append(ended.Leftovers, l)
	}
	if len(ended.Leftovers) > 0 {
		s.ender.End(ended)
	}
	s.resumed = true
	return nil
}

// still returns which of those that a plan condemns are to end by what holds by now, as to
// look at all takes long: what has begun meanwhile a later plan may allow. Services are those
// of the plan that the tables are for, which is told after they are written.
func (s *sweeper) still(doomed []condemned, p *plan.Plan, own []plan.Address) []condemned {
	if last := s.plan.Load(); last != nil && last != p {
		policed, j := judge.Needed(last), judge.NewJury(last, own)
		doomed = slices.DeleteFunc(doomed, func(d condemned) bool {
			return d.denied && !(policed && j.Forbids(d.of)) || !d.denied && !j.Unserved(d.of)
		})
	}
	if tables := s.enforced.Load(); tables != nil && tables != p {
		j := judge.NewJury(tables, own)
		doomed = slices.DeleteFunc(doomed, func(d condemned) bool { return !d.denied && !j.Unserved(d.of) })
	}
	return doomed
}

// before returns, for the first sweep, the TCP connections that were ended
// before: who ended them may not have come to tell both sides. They are by their
// keys in either direction, of which the sides need one.
func (s *sweeper) before() (map[string]conntrack.Leftover, error) {
	if s.resumed {
		return nil, nil
	}
	all := map[string]conntrack.Leftover{}
	for _, is4 := range interval.Families {
		name, like := endedPrefix+suffix(is4), setOfEnded(is4)
		there, _, err := nft.ReadElements(like.In(s.table, name))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", name, err)
		}
		for e := range there {
			from, to, protocol := readEndedKey(e.Key, is4)
			if _, known := all[endedKey(to, from, protocol)]; !known && protocol == plan.TCP {
				all[e.Key] = conntrack.Leftover{Protocol: protocol, Client: conntrack.Side{Own: from, Other: to}, Server: conntrack.Side{Own: to, Other: from}}
			}
		}
	}
	return all, nil
}

// errUnpoliced says that meanwhile nothing is forbidden: there is no policy table.
var errUnpoliced = errors.New("no endpoint has a policy any more, and no egress rule drops anything")

// refuse has what is left of connections refused, and late answers to datagrams.
func (s *sweeper) refuse(is4 bool, rest, late nft.Elements) error {
	if len(rest)+len(late) == 0 {
		return nil
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if p := s.enforced.Load(); p == nil || !judge.Needed(p) {
		return errUnpoliced
	}
	like := setOfEnded(is4)
	err := s.add(latePrefix+suffix(is4), &like, late, lateTimeout)
	if errors.Is(err, unix.ENFILE) {
		s.log.Warn("more exchanges of datagrams were ended than can be remembered; an answer that is on its way may let one go on", "most", maxEnded, "for", lateTimeout)
	} else if err != nil {
		return err
	}
	err = s.add(endedPrefix+suffix(is4), &like, rest, endedTimeout)
	if errors.Is(err, unix.ENFILE) {
		s.log.Warn("more connections were ended than can be remembered; what is not tracked is refused from now on, unless it begins a connection", "most", maxEnded/2, "for", endedTimeout)
		all := nft.Elements{}
		for _, protocol := range []plan.Protocol{plan.TCP, plan.SCTP} {
			all[nft.Element{Key: string([]byte{byte(protocol)})}] = nft.Value{}
		}
		err = s.add(endedAll, &setOfAllEnded, all, endedTimeout)
	}
	return err
}

// add puts elements into a set of the policy table for some time from now, all or none.
func (s *sweeper) add(name string, like *nft.Set, e nft.Elements, timeout time.Duration) error {
	if len(e) == 0 {
		return nil
	}
	return nft.Transaction(s.table, func(conn *nftables.Conn) error {
		return nft.RenewElements(conn, like.In(s.table, name), e, timeout)
	})
}
