package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/cache" // which setUp finds by its name
	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
)

const (
	// cached is how many answers are remembered, and how many denials.
	cached = 2048
	// maxAnswer and maxDenial are for how many seconds at most, whatever others say. A name that was
	// asked for before it was made is soon found, as with CoreDNS in the form in which clusters have it.
	maxAnswer, maxDenial = 3600, 30
	// maxCached is how large an answer is that is remembered, in bytes. So what is
	// remembered takes little, whatever somebody has their own servers answer.
	maxCached = 2048
	// payload is what servers are told that an answer by UDP may have, in bytes: what passes
	// everywhere in one piece.
	payload = 1232
	// maxStreams is how many answers are fetched by TCP at once, and maxStreamsEach how many for
	// one client. All others wait: each may have 64 KiB, and takes a thousand times the work of a
	// name of the cluster. Beyond that each domain may have fewStreams: one whose servers say nothing by TCP
	// keeps nobody from another. See fetch.go.
	maxStreams, maxStreamsEach, fewStreams = 16, 2, 2
)

// outside asks others: CoreDNS's plug-in cache, then router, then CoreDNS's forward, one for each server.
type outside struct {
	cache  plugin.Handler
	router *router
	stale  uint32
	rooms  *rooms
	// named are the servers of settings by which the cache knows what it knows.
	named []records.Stub
}

// router hands a query to who is asked for its domain.
type router struct {
	to      atomic.Pointer[[]route]
	streams *slots
	// unpacking is held while an answer that was fetched is read.
	unpacking sync.Mutex
	// away are the questions that servers are being asked by UDP.
	away singleflight.Group
	// told is where those are logged that fail.
	told *failureLog
}

// find returns who is asked for a name.
func (r *router) find(name string) *route {
	name = strings.ToLower(name)
	routes := *r.to.Load()
	i := slices.IndexFunc(routes, func(to route) bool {
		return strings.HasSuffix(name, to.domain) && dns.IsSubDomain(to.domain, name)
	})
	if i < 0 {
		i = len(routes) - 1 // which is for all names
	}
	return &routes[i]
}

// route is who is asked for names of a domain.
type route struct {
	// domain is fully qualified, in lower case.
	domain  string
	targets []target
	// of is domain as ways have it, answered what became of the queries, and pods what these got.
	of       string
	answered *atomic.Int32
	pods     *pods
	// waiting are the queries for the domain that wait for others.
	waiting *share
	// streams are those of router.streams that this domain may have beyond the others.
	streams chan struct{}
	// failures are the questions that have just failed.
	failures *failures
	// troubled says that nobody answered a query with something that helps, or that a query was one too
	// many, since that was looked at last.
	troubled *atomic.Bool
}

// newRoute returns a route to nobody, for a domain as ways have it.
func newRoute(domain string, waiting *share) route {
	return route{domain: dns.CanonicalName(domain), of: domain, answered: new(atomic.Int32), pods: new(pods), waiting: waiting,
		streams: make(chan struct{}, fewStreams), failures: newFailures(), troubled: new(atomic.Bool)}
}

// got is what pods got of a server: help with names, none where a server behind it helped, and no answer.
type got struct{ helped, passed, silent bool }

// pods are what pods got of servers since that was looked at last.
type pods struct {
	mu  sync.Mutex
	all map[netip.AddrPort]got
}

// helped takes note of who helped, and who before did not.
func (p *pods) helped(at netip.AddrPort, passed []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(at, got{helped: true})
	for _, a := range passed {
		p.note(a, got{passed: true})
	}
}

// silent takes note of who said nothing.
func (p *pods) silent(at netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(at, got{silent: true})
}

// note adds to what pods got. mu is held.
func (p *pods) note(at netip.AddrPort, more got) {
	if p.all == nil {
		p.all = map[netip.AddrPort]got{}
	}
	before := p.all[at]
	p.all[at] = got{before.helped || more.helped, before.passed || more.passed, before.silent || more.silent}
}

func (p *pods) take() (all map[netip.AddrPort]got) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, p.all = p.all, nil
	return all
}

// What became of the queries for a domain: none was answered, or none with something that helps, or
// some was.
const (
	answeredNone = iota
	answeredBadly
	answeredWell
)

// said returns what pods got of servers since that was looked at last, for which domains there were
// answers, and none that helps, since somebody helped last, and which are troubled. Domains are called as
// in ways.
func (r *router) said() (pods map[server]got, failing, troubled map[string]bool) {
	pods, failing, troubled = map[server]got{}, map[string]bool{}, map[string]bool{}
	for _, to := range *r.to.Load() {
		to.answered.CompareAndSwap(answeredWell, answeredNone)
		failing[to.of] = to.answered.Load() == answeredBadly
		troubled[to.of] = to.troubled.Swap(false)
		for at, got := range to.pods.take() {
			pods[server{at, to.of}] = got
		}
	}
	return pods, failing, troubled
}

// newOutside returns one that asks nobody, until it is given ways.
func newOutside(stale uint32) (*outside, error) {
	o := &outside{router: &router{streams: newSlots(maxStreamsEach, maxStreams)}, stale: stale, rooms: newRooms()}
	o.router.to.Store(&[]route{newRoute("", o.rooms.room(""))})
	var err error
	o.cache, err = newCache(stale, o.router)
	return o, err
}

// newCache returns CoreDNS's cache in front of another plug-in. What is stale it gives for so many seconds.
func newCache(stale uint32, next plugin.Handler) (plugin.Handler, error) {
	// A name that is asked for three times in a minute is asked anew before its time is over.
	// Where nobody has answered for 1.8 seconds, what is stale is given, or at once while somebody else's
	// question is under way or has just failed; it is to be forgotten after five (RFC 8767, section 5). A try that
	// failed keeps nobody from the next one, as it may have asked nobody: see remembered. Nor is a
	// failure kept: the cache would take it for an answer that is stale, an hour later. How often others
	// are asked all the same has other bounds: see once.
	text := fmt.Sprintf("cache %d . {\nsuccess %d %d\ndenial %d %d\nprefetch 3 1m 10%%\nservfail 0s\n", maxAnswer, cached, maxAnswer, cached, maxDenial)
	if stale > 0 {
		text += fmt.Sprintf("serve_stale %ds verify 1800ms 5s 0s\n", stale)
	}
	return setUp("cache", text+"}\n", next)
}

// setUp has a plug-in of CoreDNS read its configuration, which is the only way to say all of it.
func setUp(name, text string, next plugin.Handler) (plugin.Handler, error) {
	set, err := caddy.DirectiveAction("dns", name)
	if err != nil {
		return nil, err
	}
	// There is no other exported way to make one, whatever its name says.
	c := caddy.NewTestController("dns", text)
	if err := set(c); err != nil {
		return nil, fmt.Errorf("set up %s: %w", name, err)
	}
	plugins := dnsserver.GetConfig(c).Plugin
	if len(plugins) != 1 {
		return nil, fmt.Errorf("set up %s: it has %d handlers", name, len(plugins))
	}
	return plugins[0](next), nil
}

// waitingFor returns those who wait for others to say something of a name.
func (o *outside) waitingFor(name string) *share { return o.router.find(name).waiting }

// use has the queries from now on take other ways.
func (o *outside) use(w *ways) error {
	var to []route
	var failed error
	domains := map[string]bool{}
	add := func(domain string, servers []netip.AddrPort) {
		domains[domain] = true
		r := newRoute(domain, o.rooms.room(domain))
		for _, at := range servers {
			t, err := newTarget(at)
			if err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			r.targets = append(r.targets, t)
		}
		to = append(to, r)
	}
	for _, s := range w.stubs {
		add(s.Domain, s.Servers)
	}
	add("", w.rest)
	if failed != nil {
		stop(to)
		return failed
	}
	stop(*o.router.to.Swap(&to))
	o.rooms.keep(domains)
	return nil
}

// stop ends the health checks of forwards. Queries that are under way go on.
func stop(routes []route) {
	for _, r := range routes {
		for _, t := range r.targets {
			t.forward.OnShutdown()
		}
	}
}

// Name implements plugin.Handler.
func (*router) Name() string { return "weft" }

// errNobody is that there is nobody to ask.
var errNobody = errors.New("nobody is there to be asked")

// remembered is the key of a context in which nobody is asked: what the cache knows is all there is.
type remembered struct{}

// errRemembered is that the cache does not know it, and nobody may be asked.
var errRemembered = errors.New("too much is asked already")

// ServeDNS implements plugin.Handler.
func (r *router) ServeDNS(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) (int, error) {
	if ctx.Value(remembered{}) != nil {
		return dns.RcodeServerFailure, errRemembered
	}
	to := r.find(q.Question[0].Name)
	if len(to.targets) == 0 {
		return dns.RcodeServerFailure, errNobody
	}
	past, _ := ctx.Value(asks{}).(*recorder)
	a, err := r.once(ctx, to, q, past)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	said := a.said
	if said.Truncated && past != nil && past.stream {
		if said, err = r.fetch(ctx, to, a.by, q, past); err != nil {
			return dns.RcodeServerFailure, err
		}
	}
	return dns.RcodeSuccess, small{w, past}.WriteMsg(said)
}

// once asks by UDP, unless somebody asks the same already: then it waits for what that one is told,
// which is asked for no longer than a few seconds. Who has one question sent a hundred times at once, each
// with a number and from a port of chance (see portFor), would be a hundred times as likely to guess one
// of them, and to answer in the server's place (RFC 5452, section 5). A question that has just failed fails
// again. What is said is shared, so it must not be changed.
func (r *router) once(ctx context.Context, to *route, q *dns.Msg, past *recorder) (answered, error) {
	question := same(q)
	got, err, _ := r.away.Do(question, func() (any, error) {
		if last, is := to.failures.find(question); is {
			said, err := last.says(q)
			return answered{said: said}, err
		}
		a, err := to.exchange(ctx, q, past)
		switch {
		case err != nil:
			to.failures.add(question, failure{err: err})
			r.told.add(q, to.targets, why(a, err))
			to.troubled.Store(true)
		case !helps(a.said):
			to.failures.add(question, failureOf(a.said))
			r.told.add(q, to.targets, why(a, nil))
			to.answered.CompareAndSwap(answeredNone, answeredBadly)
			to.troubled.Store(true)
		default:
			to.answered.Store(answeredWell)
		}
		return a, err
	})
	if err != nil {
		return answered{}, err
	}
	return got.(answered), nil
}

// asks is the key of a context's recorder.
type asks struct{}

// small writes answers to the cache that are to be remembered, and others past it.
type small struct {
	dns.ResponseWriter
	past *recorder
}

// WriteMsg implements dns.ResponseWriter.
func (s small) WriteMsg(m *dns.Msg) error {
	if s.past == nil || m.Len() <= maxCached && keeps(m) {
		return s.ResponseWriter.WriteMsg(m)
	}
	s.past.large.Store(m)
	return nil
}

// keeps reports whether an answer of few bytes is one that the cache is to have. It would not keep
// one that is truncated, nor a denial behind an alias; but where it has a stale answer to the same
// question, it would take these for no answer, and give the stale one.
func keeps(m *dns.Msg) bool {
	return !m.Truncated && !answer.Inconclusive(m) && (m.Rcode != dns.RcodeNameError || len(m.Answer) == 0)
}

// ask asks others, on behalf of a client that asked by UDP or as a stream. It returns nil if nobody
// answers. The question is changed. It needs no number: forward gives each that it sends one of chance.
func (o *outside) ask(ctx context.Context, q *dns.Msg, client netip.AddrPort, stream bool) *dns.Msg {
	if edns := q.IsEdns0(); edns != nil {
		edns.SetUDPSize(payload)
	} else {
		q.SetEdns0(payload, false)
	}
	w := newRecorder(client, stream)
	o.cache.ServeDNS(context.WithValue(ctx, asks{}, w), w, q)
	// What others have just said goes before what the cache gives, as that may be stale.
	if m := w.large.Load(); m != nil {
		return m
	}
	return w.said
}

// recorder is a dns.ResponseWriter that keeps what is written.
type recorder struct {
	// from is who asks, and client the same as plug-ins want to know it again and again.
	from   netip.AddrPort
	client net.Addr
	stream bool
	said   *dns.Msg
	// large is an answer that was written past the cache, perhaps by a goroutine of its.
	large atomic.Pointer[dns.Msg]
}

func newRecorder(client netip.AddrPort, stream bool) *recorder {
	if stream {
		return &recorder{from: client, client: net.TCPAddrFromAddrPort(client), stream: true}
	}
	return &recorder{from: client, client: net.UDPAddrFromAddrPort(client)}
}

func (r *recorder) WriteMsg(m *dns.Msg) error { r.said = m; return nil }
func (r *recorder) LocalAddr() net.Addr       { return &net.UDPAddr{} }
func (r *recorder) RemoteAddr() net.Addr      { return r.client }
func (r *recorder) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (r *recorder) Close() error              { return nil }
func (r *recorder) TsigStatus() error         { return nil }
func (r *recorder) TsigTimersOnly(bool)       {}
func (r *recorder) Hijack()                   {}
