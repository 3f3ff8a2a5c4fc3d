package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/await"
)

// long is how long to wait for what should happen.
const long = time.Minute

// As another process than the test this is a server, or a keeper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "server":
			exit(serve(os.Args[2], os.Args[3]))
		case "keeper":
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
			defer stop()
			exit(keeper.New(options(os.Args[2])).Run(ctx))
		}
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(dir, file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	fd, err := strconv.Atoi(strings.TrimPrefix(file, "--keeper-file="))
	if err != nil {
		return err
	}
	line, err := keeper.Inherited(uintptr(fd))
	if err != nil {
		return err
	}
	if err := serveKiller(dir); err != nil {
		return err
	}
	return Run(ctx, Config{Keeper: line, Records: filepath.Join(dir, "records"), Resolv: filepath.Join(dir, "resolv.conf"), Domain: "cluster.local",
		Log: slog.New(slog.DiscardHandler)})
}

// options are those of a keeper whose files are in a directory.
func options(dir string) keeper.Options {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return keeper.Options{Socket: filepath.Join(dir, "dns.sock"), Server: []string{self, "server", dir}, Every: 100 * time.Millisecond, Patience: 100,
		Log: slog.New(slog.DiscardHandler)}
}

// node has a name server.
type node struct {
	testing.TB
	dir     string
	journal *journal.Journal
	// at is where it serves first.
	at netip.AddrPort
}

// on makes the files of a node, which has no name server yet.
func on(t testing.TB, settings *records.Settings, services ...*records.Service) *node {
	t.Helper()
	n := &node{TB: t, dir: t.TempDir()}
	j, err := journal.Open(filepath.Join(n.dir, "records"))
	n.must(err)
	t.Cleanup(func() { j.Close() })
	n.journal = j
	n.must(j.Put(settings, []string{"default"}, services, nil, nil))
	n.must(os.WriteFile(filepath.Join(n.dir, "resolv.conf"), nil, 0o600))
	return n
}

// run runs the name server.
func run(t testing.TB, settings *records.Settings, services ...*records.Service) *node {
	t.Helper()
	n := on(t, settings, services...)
	keep(n, options(n.dir))
	return n
}

// keep has a node's name server be kept until the test ends.
func keep(n *node, o keeper.Options) {
	n.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- keeper.New(o).Run(ctx) }()
	n.Cleanup(func() {
		cancel()
		n.must(<-ended)
	})
	n.serving()
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) state(what string, good func(keeper.State) bool) (s keeper.State) {
	n.Helper()
	await.NoError(n, long, what, func() (err error) {
		s, err = keeper.Ask(n.Context(), filepath.Join(n.dir, "dns.sock"))
		if err == nil && !good(s) {
			err = fmt.Errorf("it says %+v", s)
		}
		return err
	})
	return s
}

func (n *node) serving() {
	n.Helper()
	s := n.state("the server serves", func(s keeper.State) bool { return s.Serving && len(s.Addresses) > 0 })
	n.at = s.Addresses[0]
}

func (n *node) problem(says string) {
	n.Helper()
	n.state("a problem is told", func(s keeper.State) bool { return strings.Contains(s.Problem, says) })
}

// settings are those of a node that serves at an address of its own, and asks upstreams.
func settings(upstreams ...netip.AddrPort) *records.Settings {
	return &records.Settings{Domain: "cluster.local", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Upstreams: upstreams}
}

func service(name string, last byte) *records.Service {
	return &records.Service{Key: records.Key{Namespace: "default", Name: name}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})},
		Ports: []records.Port{{Name: "http", Protocol: records.TCP, Port: 80}}}
}

// upstream is a name server outside, which says what a function says.
func upstream(t testing.TB, say func(w dns.ResponseWriter, q *dns.Msg)) netip.AddrPort {
	t.Helper()
	for range 10 {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", c.LocalAddr().String())
		if err != nil {
			c.Close()
			continue
		}
		var begun sync.WaitGroup
		for _, s := range []*dns.Server{{PacketConn: c, UDPSize: 4096}, {Listener: l}} {
			s.Handler = dns.HandlerFunc(say)
			begun.Add(1)
			s.NotifyStartedFunc = begun.Done
			go s.ActivateAndServe()
			t.Cleanup(func() { s.Shutdown() })
		}
		begun.Wait()
		return c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return netip.AddrPort{}
}

// says answers a query with records in text form, which have the name asked in the place of @.
func says(w dns.ResponseWriter, q *dns.Msg, text ...string) {
	r := new(dns.Msg).SetReply(q)
	r.RecursionAvailable = true
	for _, line := range text {
		rr, err := dns.NewRR(strings.ReplaceAll(line, "@", q.Question[0].Name))
		if err != nil {
			panic(err)
		}
		r.Answer = append(r.Answer, rr)
	}
	if w.RemoteAddr().Network() == "udp" {
		size := dns.MinMsgSize
		if edns := q.IsEdns0(); edns != nil {
			size = int(edns.UDPSize())
		}
		r.Truncate(size)
	}
	w.WriteMsg(r)
}

// question returns a query.
func question(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
}

// ask asks once, from an address, and returns what comes within a time.
func ask(at netip.AddrPort, network, from string, q *dns.Msg, within time.Duration) (*dns.Msg, error) {
	c := &dns.Client{Net: network, Timeout: within}
	if from != "" {
		local := netip.AddrPortFrom(netip.MustParseAddr(from), 0)
		c.Dialer = &net.Dialer{Timeout: within, LocalAddr: net.UDPAddrFromAddrPort(local)}
		if network == "tcp" {
			c.Dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
	}
	r, _, err := c.Exchange(q, at.String())
	return r, err
}

// answers returns what a query is answered with, as a code and the data of its records in order.
func (n *node) answers(network string, q *dns.Msg) string {
	n.Helper()
	r, err := ask(n.at, network, "", q, long)
	n.must(err)
	return words(r)
}

func words(r *dns.Msg) string {
	w := []string{dns.RcodeToString[r.Rcode]}
	for _, rr := range r.Answer {
		w = append(w, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(w[1:])
	if r.Truncated {
		w = append(w, "truncated")
	}
	return strings.Join(w, " ")
}

func (n *node) want(network string, q *dns.Msg, want string) {
	n.Helper()
	if got := n.answers(network, q); got != want {
		n.Errorf("%s by %s: %s, and it should be %s", q.Question[0].Name, network, got, want)
	}
}

// pid returns the server's process.
func (n *node) pid() int {
	n.Helper()
	pid := 0
	await.NoError(n, long, "there is one server", func() error {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		pid = 0
		for _, path := range all {
			if data, _ := os.ReadFile(path); strings.Contains(string(data), "\x00server\x00"+n.dir+"\x00") {
				if pid != 0 {
					return errors.New("there are two")
				}
				fmt.Sscanf(path, "/proc/%d/", &pid)
			}
		}
		if pid == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	return pid
}

// TestAnswers asks for names inside and outside, by UDP and TCP.
func TestAnswers(t *testing.T) {
	corp := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.2") })
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		var text []string
		switch q.Question[0].Name {
		case "large.example.":
			for i := range 200 {
				text = append(text, fmt.Sprintf("@ 60 IN TXT %d-%s", i, strings.Repeat("x", 40)))
			}
		case "middle.example.":
			for i := range 60 {
				text = append(text, fmt.Sprintf("@ 60 IN A 10.0.0.%d", i))
			}
		case "www.example.":
			text = []string{"@ 60 IN A 203.0.113.1"}
		default:
			w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused))
			return
		}
		says(w, q, text...)
	})
	set := settings(up)
	set.Stubs = []records.Stub{{Domain: "corp.example", Servers: []netip.AddrPort{corp}}}
	n := run(t, set, service("web", 1))
	for _, network := range []string{"udp", "tcp"} {
		n.want(network, question("web.default.svc.cluster.local", dns.TypeA), "NOERROR 10.96.0.1")
		n.want(network, question("none.default.svc.cluster.local", dns.TypeA), "NXDOMAIN")
		n.want(network, question("1.0.96.10.in-addr.arpa", dns.TypePTR), "NOERROR web.default.svc.cluster.local.")
		n.want(network, question("www.example", dns.TypeA), "NOERROR 203.0.113.1")
		n.want(network, question("www.corp.example", dns.TypeA), "NOERROR 203.0.113.2")
		n.want(network, question("CORP.example", dns.TypeA), "NOERROR 203.0.113.2")
		n.want(network, question("other.example", dns.TypeA), "REFUSED")
	}
	for _, size := range []uint16{0, 512, 1232, 4096, 65535} {
		for _, name := range []string{"large.example", "middle.example"} {
			q := question(name, dns.TypeTXT)
			if name == "middle.example" {
				q = question(name, dns.TypeA)
			}
			fits := max(size, 512)
			if size > 0 {
				q.SetEdns0(size, false)
			}
			r, err := ask(n.at, "udp", "", q, long)
			n.must(err)
			r.Compress = true
			whole := name == "middle.example" && size >= 1232
			if r.Len() > int(min(fits, 1232)) || r.Truncated == whole {
				t.Errorf("%s for who takes %d bytes: %d bytes, truncated: %v", name, size, r.Len(), r.Truncated)
			}
		}
	}
	if r, err := ask(n.at, "tcp", "", question("large.example", dns.TypeTXT), long); err != nil || len(r.Answer) != 200 {
		t.Errorf("by TCP %v, %v", r, err)
	}
}

// TestNonsense sends what is no query; what has a reply has the right one, and all else none.
func TestNonsense(t *testing.T) {
	n := run(t, settings(), service("web", 1))
	pack := func(m *dns.Msg) []byte {
		data, err := m.Pack()
		n.must(err)
		return data
	}
	good := question("web.default.svc.cluster.local", dns.TypeA)
	response := good.Copy()
	response.Response = true
	update := good.Copy()
	update.Opcode = dns.OpcodeUpdate
	two := good.Copy()
	two.Question = append(two.Question, two.Question[0])
	chaos := good.Copy()
	chaos.Question[0].Qclass = dns.ClassCHAOS
	for name, c := range map[string]struct {
		data []byte
		want int
	}{
		"empty":             {nil, -1},
		"short":             {pack(good)[:11], -1},
		"a response":        {pack(response), -1},
		"cut":               {pack(good)[:20], dns.RcodeFormatError},
		"an update":         {pack(update), dns.RcodeNotImplemented},
		"two questions":     {pack(two), dns.RcodeFormatError},
		"of another class":  {pack(chaos), dns.RcodeRefused},
		"longer than taken": {append(pack(good), make([]byte, 5000)...), dns.RcodeFormatError},
	} {
		c2, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.at))
		n.must(err)
		defer c2.Close()
		c2.SetDeadline(time.Now().Add(long))
		_, err = c2.Write(c.data)
		n.must(err)
		if c.want < 0 {
			// What is sent next is answered first.
			q := good.Copy()
			q.Id = 4711
			_, err = c2.Write(pack(q))
			n.must(err)
		}
		buf := make([]byte, 4096)
		size, err := c2.Read(buf)
		n.must(err)
		r := new(dns.Msg)
		n.must(r.Unpack(buf[:size]))
		switch {
		case c.want < 0 && r.Id != 4711:
			t.Errorf("%s is answered: %v", name, r)
		case c.want >= 0 && r.Rcode != c.want:
			t.Errorf("%s: %s", name, dns.RcodeToString[r.Rcode])
		}
	}
	// By TCP the next query is found behind what is too long.
	c, err := net.Dial("tcp", n.at.String())
	n.must(err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	co := &dns.Conn{Conn: c}
	for _, q := range []struct {
		data []byte
		want string
	}{{append(pack(good), make([]byte, 60000)...), "FORMERR"}, {pack(good), "NOERROR 10.96.0.1"}} {
		_, err = co.Write(q.data)
		n.must(err)
		r, err := co.ReadMsg()
		n.must(err)
		if got := words(r); got != q.want || r.Id != good.Id {
			t.Errorf("%d bytes by TCP: %s, and it should be %s", len(q.data), got, q.want)
		}
	}
}

// TestNoRecords takes the records away and kills the server: the next one answers names outside,
// and says of none of the cluster that it does not exist. Then they are there again.
func TestNoRecords(t *testing.T) {
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") })
	n := run(t, settings(up), service("web", 1))
	path := filepath.Join(n.dir, "records")
	n.must(os.WriteFile(filepath.Join(n.dir, "resolv.conf"), []byte("nameserver 127.0.0.1\n"), 0o600))
	pid := n.pid()
	n.must(os.Remove(path))
	n.problem("there are no records of names")
	n.want("udp", question("web.default.svc.cluster.local", dns.TypeA), "NOERROR 10.96.0.1")
	n.must(unix.Kill(pid, unix.SIGKILL))
	n.want("udp", question("web.default.svc.cluster.local", dns.TypeA), "SERVFAIL")
	n.want("tcp", question("none.default.svc.cluster.local", dns.TypeA), "SERVFAIL")
	n.want("udp", question("1.0.96.10.in-addr.arpa", dns.TypePTR), "SERVFAIL")
	n.problem("is the agent running?")
	n.must(n.journal.Put(settings(up), []string{"default"}, nil, nil, nil))
	await.NoError(n, long, "the records hold", func() error {
		if got := n.answers("udp", question("web.default.svc.cluster.local", dns.TypeA)); got != "NOERROR 10.96.0.1" {
			return errors.New(got)
		}
		return nil
	})
	n.state("there is no problem", func(s keeper.State) bool { return s.Problem == "" })
	n.want("udp", question("www.example", dns.TypeA), "NOERROR 203.0.113.1")
}

// TestChanges changes Services, and where the server serves.
func TestChanges(t *testing.T) {
	n := run(t, settings(), service("web", 1))
	n.must(n.journal.Put(settings(), []string{"default"}, []*records.Service{service("db", 2)}, []records.Key{{Namespace: "default", Name: "web"}}, nil))
	for name, want := range map[string]string{"db": "NOERROR 10.96.0.2", "web": "NXDOMAIN"} {
		await.NoError(n, long, name, func() error {
			if got := n.answers("udp", question(name+".default.svc.cluster.local", dns.TypeA)); got != want {
				return errors.New(got)
			}
			return nil
		})
	}
	set := settings()
	set.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.9"), netip.IPv6Loopback()}
	n.must(n.journal.Put(set, []string{"default"}, nil, nil, nil))
	s := n.state("it serves at other addresses", func(s keeper.State) bool {
		return s.Serving && len(s.Addresses) == 2 && s.Addresses[0].Addr() == set.Addresses[0]
	})
	old := n.at
	for _, n.at = range s.Addresses {
		n.want("udp", question("db.default.svc.cluster.local", dns.TypeA), "NOERROR 10.96.0.2")
		n.want("tcp", question("db.default.svc.cluster.local", dns.TypeA), "NOERROR 10.96.0.2")
	}
	if l, err := net.Listen("tcp", old.String()); err != nil {
		t.Errorf("the address before is in use still: %v", err)
	} else {
		l.Close()
	}
}

// FuzzPacket has any packet handled, by a server with a name inside, that asks nobody.
func FuzzPacket(f *testing.F) {
	o, err := newOutside(0)
	if err != nil {
		f.Fatal(err)
	}
	s := &Server{log: slog.New(slog.DiscardHandler), labels: withLabels()}
	s.outside.Store(o)
	s.apply(journal.Batch{Settings: settings(), Put: []*records.Service{service("web", 1)}})
	for _, name := range []string{"web.default.svc.cluster.local", "www.example"} {
		data, err := question(name, dns.TypeA).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, true)
		f.Add(data[:13], false)
	}
	f.Fuzz(func(t *testing.T, data []byte, stream bool) {
		replies := 0
		s.handle(&packet{data: data, from: netip.MustParseAddrPort("10.1.0.1:1234"), stream: stream, reply: func(reply []byte) {
			replies++
			r := new(dns.Msg)
			if err := r.Unpack(reply); err != nil || !r.Response || r.Id != uint16(data[0])<<8|uint16(data[1]) {
				t.Errorf("the reply is %x: %v", reply, err)
			}
			if limit := 1232; !stream && len(reply) > limit {
				t.Errorf("the reply has %d bytes", len(reply))
			}
		}}, func(f func()) { f() })
		if replies > 1 {
			t.Errorf("there are %d replies", replies)
		}
		if o.rooms.all.count() > 0 {
			t.Error("something is under way")
		}
	})
}
