// Package server is a node's name server: a process that package keeper starts, gives sockets,
// and starts again. It answers for the names of the cluster by package answer, from the records
// that package journal follows. For all others it asks other servers, by CoreDNS's plug-ins
// cache and forward, which are run here without CoreDNS's own server.
//
// Nothing is read from the sockets before the records have been read once, so that a start never
// says of a name that it does not exist because it is not known yet. Where there are no records
// for two seconds, names outside are answered, and those of the cluster get SERVFAIL. Reading many
// records may take longer.
//
// A query that was read is held in memory that outlives the process until it is answered. So the
// next server answers what one that was killed has read, as if it had read it itself: each client
// in its turn, what was read first first.
//
// A pod may ask as much as it likes: queries wait in a queue that gives each client its turn, and
// how many of one client wait for others to answer, of each domain that others are asked for, and how
// many connections it has, has a bound, as all together has. A question that has just failed fails
// at once for a second. Answers that are too large for a datagram are fetched a few at a
// time, for who asks by TCP. What others answer is remembered, and where Settings say so, it is
// given for a while after its time when nobody answers in time.
//
// Servers that would bring queries back are not asked: those that are this one itself, and those
// that bring back a probe, a question for a name that nobody else knows.
package server

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/dns/unanswered"
)

// Config says what a server needs to know.
type Config struct {
	// Keeper is who gives it sockets.
	Keeper *keeper.Line
	// Records is the path of the file that the agent writes.
	Records string
	// Resolv is the path of the node's resolv.conf(5), whose servers are asked where the
	// records name none.
	Resolv string
	// Domain is taken for the cluster's while there are no records.
	Domain string
	// Metrics is the address and port at which metrics are told; nowhere if it is empty.
	Metrics string
	// Log gets what happens; slog's default if nil.
	Log *slog.Logger
}

const (
	// patience is how long records may be missing before the sockets are read without them.
	patience = 2 * time.Second
	// stillReading is how long after that it is asked again whether they are still being read.
	stillReading = 100 * time.Millisecond
	// grace is how long queries that were read are answered when the server is to end.
	grace = 4 * time.Second
)

// Server is a name server.
type Server struct {
	c      Config
	log    *slog.Logger
	labels context.Context

	records *journal.Follower
	zone    answer.Zone
	// applying is held while a batch of records is applied, so that no answer comes between
	// two of its parts.
	applying sync.RWMutex
	// searches are the domains in which the node looks for names; applying guards them.
	searches []string
	// settings are nil until there are records.
	settings atomic.Pointer[records.Settings]

	outside     atomic.Pointer[outside]
	probes      probes
	connections *share
	queries     *fair[*packet]
	memory      *unanswered.Memory
	metrics     *metrics

	// changed says that ways to others may be other ones, and told that the keeper is to know
	// something.
	changed, told chan struct{}

	mu    sync.Mutex
	ready bool
	pairs map[netip.AddrPort]*pair
	// unread is how many queries had no room at sockets that are no more in pairs.
	unread uint64
	// left are queries that the server before has read and not answered, by where they came.
	left map[netip.AddrPort][]unanswered.Left
	// notUsable are sockets that could not be used, and ways what is wrong with servers to
	// ask.
	notUsable map[netip.AddrPort]error
	ways      []string

	// ending guards what ends with the server.
	ending     sync.Mutex
	ended      bool
	open       map[*net.TCPConn]struct{}
	conversing sync.WaitGroup
	waiting    sync.WaitGroup
}

// Run serves until ctx ends, and then answers what it has read. It returns an error at once if
// the keeper is gone.
func Run(ctx context.Context, c Config) error {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Server{c: c, log: c.Log, labels: withLabels(), connections: newShare(maxConnectionsEach, maxConnections),
		queries: newFair[*packet](maxWaitingEach, maxWaiting), changed: make(chan struct{}, 1), told: make(chan struct{}, 1),
		pairs: map[netip.AddrPort]*pair{}, notUsable: map[netip.AddrPort]error{}, open: map[*net.TCPConn]struct{}{}}
	s.records = journal.Follow(c.Records, s.apply)
	o, err := newOutside(0)
	if err != nil {
		return err
	}
	o.router.told = &failureLog{log: s.log}
	s.outside.Store(o)
	// What the goroutines below do ends with the process.
	background, stop := context.WithCancel(context.Background())
	defer stop()
	if c.Metrics != "" {
		if s.metrics, err = newMetrics(s, prometheus.DefaultRegisterer); err != nil {
			return err
		}
		go serveMetrics(background, c.Metrics, s.log)
	}
	if err := s.useMemory(); err != nil {
		return err
	}
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(s.work)
	}
	go s.records.Run(background)
	go s.tell(background)
	gone := make(chan error, 1)
	go func() { gone <- s.hear() }()
	select {
	case <-ctx.Done():
	case err := <-gone:
		return err
	case <-s.records.Known():
	case <-missing(background, func() bool { return s.records.State().Looking }):
		s.log.Warn("there are no records, and names of the cluster are not answered", "problem", s.records.State().Problem)
	}
	known := make(chan struct{})
	go s.route(background, sync.OnceFunc(func() { close(known) }))
	<-known
	if ctx.Err() == nil {
		s.begin()
		select {
		case <-ctx.Done():
		case err := <-gone:
			return err
		}
	}
	s.end(&workers)
	return nil
}

// missing returns a channel that is closed after patience, and not while records are looked for.
func missing(ctx context.Context, looking func() bool) <-chan struct{} {
	is := make(chan struct{})
	go func() {
		for wait := patience; ; wait = stillReading {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if !looking() {
				close(is)
				return
			}
		}
	}()
	return is
}

// apply takes a change of the records over.
func (s *Server) apply(b journal.Batch) {
	s.applying.Lock()
	if b.Settings != nil {
		s.setZone(b.Settings)
		s.settings.Store(b.Settings)
	}
	for _, k := range b.Gone {
		s.zone.Delete(k)
	}
	for _, one := range b.Put {
		s.zone.Put(one)
	}
	for _, name := range b.Ended {
		s.zone.DeleteNamespace(name)
	}
	for _, name := range b.Namespaces {
		s.zone.PutNamespace(name)
	}
	for _, a := range b.Left {
		s.zone.DeleteClient(a)
	}
	for _, c := range b.Clients {
		s.zone.PutClient(c)
	}
	s.applying.Unlock()
	if b.Settings != nil {
		say(s.changed)
		say(s.told)
	}
}

// setZone has questions be answered by settings. applying is held.
func (s *Server) setZone(set *records.Settings) {
	all := *set
	if len(all.Searches) == 0 {
		all.Searches = s.searches
	}
	s.zone.Set(&all)
}

func say(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// domain returns the cluster's, fully qualified.
func (s *Server) domain() string {
	if set := s.settings.Load(); set != nil {
		return dns.CanonicalName(set.Domain)
	}
	return dns.CanonicalName(s.c.Domain)
}

// unknown reports whether a name may be the cluster's, as long as there are no records.
func (s *Server) unknown(name string) bool {
	name = strings.ToLower(name)
	return dns.IsSubDomain(s.domain(), name) || dns.IsSubDomain("in-addr.arpa.", name) || dns.IsSubDomain("ip6.arpa.", name)
}

// work answers queries until the queue is closed.
func (s *Server) work() {
	for {
		p, ok := s.queries.pop()
		if !ok {
			return
		}
		s.handle(p, func(f func()) { s.waiting.Go(f) })
	}
}

// hear does what the keeper says, until that is gone.
func (s *Server) hear() error {
	for {
		opened, closed, question, err := s.c.Keeper.Hear()
		if err != nil {
			return err
		}
		for _, at := range closed {
			s.close(at)
		}
		for _, k := range opened {
			s.add(k)
		}
		if question > 0 {
			// It has its turn among the queries: a server that works for nobody has no answer.
			s.queries.pushAnyway(netip.Addr{}, &packet{check: func() { s.c.Keeper.Answer(question, s.report()) }})
		}
		say(s.told)
		say(s.changed)
	}
}

// add begins with the sockets of an address.
func (s *Server) add(k keeper.Sockets) {
	p, err := adopt(k, s.memory)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.notUsable[k.At] = err
		return
	}
	if old := s.pairs[k.At]; old != nil {
		s.leave(old)
		old.stop()
		old.udp.Close()
	}
	s.pairs[k.At] = p
	if s.ready {
		p.read(s)
	}
}

// close ends the use of an address.
func (s *Server) close(at netip.AddrPort) {
	s.mu.Lock()
	p := s.pairs[at]
	if p != nil {
		s.leave(p)
	}
	delete(s.pairs, at)
	delete(s.notUsable, at)
	s.mu.Unlock()
	if p != nil {
		p.stop()
		p.udp.Close()
	}
}

// begin has the sockets read.
func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	for _, p := range s.pairs {
		p.read(s)
	}
	say(s.told)
	say(s.changed)
}

// end answers what was read, and no more.
func (s *Server) end(workers *sync.WaitGroup) {
	s.mu.Lock()
	s.ready = false
	for _, p := range s.pairs {
		p.stop()
	}
	s.mu.Unlock()
	s.endConnections()
	s.queries.close()
	done := make(chan struct{})
	go func() {
		workers.Wait()
		s.waiting.Wait()
		s.conversing.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(grace):
		s.log.Warn("others have not answered all queries in time")
	}
}

// report says how the server is.
func (s *Server) report() keeper.Report {
	var r keeper.Report
	if set := s.settings.Load(); set != nil {
		r.Addresses = append([]netip.Addr{}, set.Addresses...)
	}
	r.Problem = s.problem()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Serves = s.readingLocked()
	return r
}

// reading returns where sockets are read, in order.
func (s *Server) reading() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readingLocked()
}

func (s *Server) readingLocked() []netip.AddrPort {
	if !s.ready {
		return nil
	}
	return slices.SortedFunc(maps.Keys(s.pairs), netip.AddrPort.Compare)
}

// problem returns what keeps queries from being answered as they should.
func (s *Server) problem() string {
	var all []string
	if err := s.records.State().Problem; err != nil {
		all = append(all, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range slices.SortedFunc(maps.Keys(s.notUsable), netip.AddrPort.Compare) {
		all = append(all, s.notUsable[at].Error())
	}
	return strings.Join(append(all, s.ways...), "; ")
}

// tell tells the keeper what has changed.
func (s *Server) tell(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last *keeper.Report
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.told:
		case <-tick.C:
		}
		r := s.report()
		if last != nil && reflect.DeepEqual(*last, r) {
			continue
		}
		if r.Problem != "" && (last == nil || last.Problem != r.Problem) {
			s.log.Warn("the name server has a problem", "problem", r.Problem)
		}
		if s.c.Keeper.Tell(r) == nil {
			last = &r
		}
	}
}
