// Package health answers those who ask a node about Services, at the ports and in the form of
// kube-proxy: load balancers, of the node as a whole (port 10256) and of single Services
// (service.Check), and tests and dashboards on the node itself (port 10249).
//
// Anybody may ask. So each port has a bound to its connections, those of one machine a smaller
// one, and an answer costs next to nothing.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weftnet/weft/service"
)

const (
	// NodePort is where kube-proxy says whether it serves the node, LocalPort where, at
	// 127.0.0.1 alone, it says what it is.
	NodePort, LocalPort = service.NodeCheckPort, service.LocalCheckPort
	// Mode is what is said to be the proxy's mode: that of kube-proxy which works alike.
	Mode = "nftables"

	// lateAfter is how long a change may wait to be loaded before the node counts as one
	// that does not serve Services.
	lateAfter = time.Minute
	// tryAgain is how long after it was taken a port is tried again.
	tryAgain = 2 * time.Second
	// mostOfAll is how many connections there may be to all ports of Services at a time, and to
	// each of the ports that answer about the node, mostOfOne how many of those from one address.
	mostOfAll, mostOfOne = 4096, 256
	// askingTime is how long it may take to see who has the ports that are taken.
	askingTime = time.Second
)

// State is how the node does, by the agent's word.
type State struct {
	// Updated is when all that was known was loaded last, zero where nothing was.
	Updated time.Time
	// Found says that what was loaded before the agent began is there still.
	Found bool
	// Unable says that the node's data plane does no Services.
	Unable bool
	// Since is when the first change came that is not loaded yet, zero where there is none.
	Since time.Time
	// Leaving says that the node is to go: no new connections are to come to it.
	Leaving bool
}

// serving reports whether the node serves Services as they are.
func (s State) serving(now time.Time) bool {
	loaded := s.Found || !s.Updated.IsZero()
	return loaded && !s.Unable && (s.Since.IsZero() || now.Sub(s.Since) <= lateAfter)
}

// Server answers. State, Metrics and Log are required.
type Server struct {
	State func() State
	// Metrics are served at LocalPort.
	Metrics http.Handler
	Log     *slog.Logger
	// Problem is told what of the ports is another program's that is not kube-proxy; ""
	// when none is.
	Problem func(string)

	mu      sync.Mutex
	checks  map[uint16]service.Check
	changed chan struct{}
	once    sync.Once
	// asking are the connections to all ports of Services.
	asking crowd
}

func (s *Server) init() { s.once.Do(func() { s.changed = make(chan struct{}, 1) }) }

// Update says what is asked from now on. It does not wait.
func (s *Server) Update(checks []service.Check) {
	s.init()
	now := make(map[uint16]service.Check, len(checks))
	for _, c := range checks {
		now[c.Port] = c
	}
	s.mu.Lock()
	same := maps.Equal(s.checks, now)
	s.checks = now
	s.mu.Unlock()
	if !same {
		s.wake()
	}
}

// wake has Run look again.
func (s *Server) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// check returns what is asked at a port.
func (s *Server) check(port uint16) (service.Check, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.checks[port]
	return c, ok
}

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) {
	s.init()
	open := make(map[string]*answering) // by address
	defer func() {
		for _, a := range open {
			a.end()
		}
		s.Problem("")
	}()
	for ctx.Err() == nil {
		wanted := map[string]http.Handler{
			fmt.Sprintf(":%d", NodePort):           s.node(),
			fmt.Sprintf("127.0.0.1:%d", LocalPort): s.local(),
		}
		s.mu.Lock()
		for port := range s.checks {
			wanted[fmt.Sprintf(":%d", port)] = s.service(port)
		}
		s.mu.Unlock()
		for address, a := range open {
			if wanted[address] == nil || a.ended() {
				a.end()
				delete(open, address)
			}
		}
		var taken []string
		again := (<-chan time.Time)(nil)
		asked, cancel := context.WithTimeout(ctx, askingTime)
		for _, address := range slices.Sorted(maps.Keys(wanted)) {
			if open[address] != nil {
				continue
			}
			a, err := s.listen(address, wanted[address])
			if err == nil {
				open[address] = a
				continue
			}
			again = time.After(tryAgain)
			if !errors.Is(err, syscall.EADDRINUSE) || !isKubeProxy(asked, address) {
				taken = append(taken, err.Error())
			}
		}
		cancel()
		problem := ""
		if len(taken) > 0 {
			problem = "those who ask about Services get no answer, or another program's: " + strings.Join(taken, "; ")
		}
		s.Problem(problem)
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-again:
		}
	}
}

// answering is who answers at an address.
type answering struct {
	server *http.Server
	done   chan struct{}
}

// end has it answer no more.
func (a *answering) end() {
	a.server.Close()
	<-a.done
}

// ended reports whether it answers no more.
func (a *answering) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// listen answers at an address until that is ended, or cannot go on: then Run begins anew.
func (s *Server) listen(address string, h http.Handler) (*answering, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: h, ReadTimeout: 2 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 4 << 10,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug)}
	server.SetKeepAlivesEnabled(false) // each asks once in a while
	a := &answering{server, make(chan struct{})}
	go func() {
		// Whoever fills the ports of Services keeps nobody from asking about the node.
		connections := &s.asking
		if l.Addr().(*net.TCPAddr).Port == NodePort || l.Addr().(*net.TCPAddr).Port == LocalPort {
			connections = new(crowd)
		}
		err := server.Serve(&bounded{l, connections})
		close(a.done)
		if !errors.Is(err, http.ErrServerClosed) {
			s.Log.Warn("who asks about Services gets no answer for a moment", "address", address, "error", err)
			s.wake()
		}
	}()
	return a, nil
}

// isKubeProxy reports whether kube-proxy is who answers at an address. Where that is all
// addresses, kube-proxy may be at some of them.
func isKubeProxy(ctx context.Context, address string) bool {
	host, port, _ := net.SplitHostPort(address)
	hosts := []string{host}
	if host == "" {
		hosts = []string{"127.0.0.1"}
		all, _ := net.InterfaceAddrs()
		for _, a := range all[:min(len(all), mostAsked)] {
			if prefix, ok := a.(*net.IPNet); ok && !prefix.IP.IsLinkLocalUnicast() {
				hosts = append(hosts, prefix.IP.String())
			}
		}
	}
	path := "/healthz"
	if port == strconv.Itoa(LocalPort) {
		path = "/proxyMode"
	}
	return slices.ContainsFunc(hosts, func(host string) bool { return saysKubeProxy(ctx, "http://"+net.JoinHostPort(host, port)+path) })
}

// mostAsked is at how many of the node's addresses somebody is asked what he is.
const mostAsked = 32

// saysKubeProxy reports whether what is said at a URL is what kube-proxy says there.
func saysKubeProxy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := asking.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return false
	}
	if strings.HasSuffix(url, "/proxyMode") {
		return slices.Contains([]string{"iptables", "ipvs", "nftables"}, string(body))
	}
	var said struct {
		CurrentTime         *string
		ServiceProxyHealthy *bool
	}
	return json.Unmarshal(body, &said) == nil && (said.CurrentTime != nil || said.ServiceProxyHealthy != nil)
}

// asking asks without a proxy of the environment, and keeps no connection.
var asking = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// answer writes JSON with a status.
func answer(w http.ResponseWriter, ok bool, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(v) // who asked is gone, or has it
}

// node answers of the node as a whole.
func (s *Server) node() http.Handler {
	mux := http.NewServeMux()
	for path, asksNode := range map[string]bool{"GET /healthz": true, "GET /livez": false} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			now, state := time.Now(), s.State()
			ok := state.serving(now) && !(asksNode && state.Leaving)
			said := map[string]any{"lastUpdated": state.Updated.UTC().String(), "currentTime": now.UTC().String()}
			if asksNode {
				said["nodeEligible"] = !state.Leaving
			}
			answer(w, ok, said)
		})
	}
	return mux
}

// local answers of the proxy, to processes of the node.
func (s *Server) local() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, Mode)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.Handle("GET /metrics", s.Metrics)
	return mux
}

// service answers of the Service whose port it is, at any path.
func (s *Server) service(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		check, ok := s.check(port)
		if !ok {
			http.Error(w, "no Service has this port any more", http.StatusServiceUnavailable)
			return
		}
		serving := s.State().serving(time.Now())
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
		answer(w, serving && check.Local > 0, map[string]any{
			"service":             map[string]string{"namespace": check.Service.Namespace, "name": check.Service.Name},
			"localEndpoints":      check.Local,
			"serviceProxyHealthy": serving,
		})
	})
}
