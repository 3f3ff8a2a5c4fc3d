package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/kubernetes"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// The name servers that are measured.
const (
	serverWeft    = "Weft"
	serverCoreDNS = "CoreDNS"
	// serverCached is CoreDNS that caches the cluster's names as well.
	serverCached = "CoreDNS, all cached"
	// serverBare is what any server could reach at best.
	serverBare = "a constant"
	// written stands for the API server among those whose changes are timed.
	written = "written"
	// serverNone is that the pod asks the server outside itself.
	serverNone = "nobody in between"
)

const (
	// addressesEach is how many addresses a pod has.
	addressesEach = 4
	// namesRate is how many queries a second are sent where their latency is measured.
	namesRate = 5000
	// namesChanges is how often each kind of change is timed, and changeLimit how long one may
	// take until it is answered.
	namesChanges = 100
	changeLimit  = time.Minute
	// namesReady is how long all programs have to start.
	namesReady = 10 * time.Minute
	// namesRest is how long nobody asks before memory is looked at.
	namesRest = 30 * time.Second
)

// namesResults is what was measured of names, for each number of Services.
type namesResults struct {
	Worlds []namesResult
	// Lacking says that CoreDNS was left out, as the programs are not built.
	Lacking bool
}

// namesResult is what was measured in one cluster.
type namesResult struct {
	Services int
	// Servers are those measured, Weft first.
	Servers []string
	// Traffic are the samples of queries, and LookUps those of look-ups, a round each.
	Traffic map[namesLoad]map[string][]sample
	LookUps map[lookUpKind]map[string][]lookUpSample
	// Idle is the memory of processes before anything was asked, and Busy that after all.
	Idle, Busy map[string]memory
	// Changes are the sorted times of each kind of change until the answer, by server, and
	// until the API server had written it.
	Changes map[nameChange]map[string][]time.Duration
}

// namesLoad is a kind of queries.
type namesLoad string

const (
	askInside  namesLoad = "name of a Service"
	askMissing namesLoad = "name that there is not"
	askOutside namesLoad = "name outside, cached"
	askAtRate  namesLoad = "name of a Service, at a rate"
)

var namesLoads = []namesLoad{askInside, askMissing, askOutside, askAtRate}

// asking returns what is asked.
func (l namesLoad) asking(services int) asking {
	switch l {
	case askInside:
		return asking{Names: insideNames(services)}
	case askMissing:
		return asking{Names: missingNames(), Rcode: 3}
	case askOutside:
		return asking{Names: outsideNames()}
	}
	return asking{Names: insideNames(services), Rate: namesRate}
}

// lookUpKind is a kind of look-ups by a pod with a list of domains to search.
type lookUpKind string

const (
	lookUpFresh lookUpKind = "new each time"
	lookUpAgain lookUpKind = "known"
)

var lookUpKinds = []lookUpKind{lookUpFresh, lookUpAgain}

// server is the name of who is asked in a server's turn: of names that are new, no server knows
// a constant.
func (k lookUpKind) server(name string) string {
	if name == serverBare && k == lookUpFresh {
		return serverNone
	}
	return name
}

// lookUpSample is a sample with how many queries the server outside got.
type lookUpSample struct {
	sample
	Upstream uint64
}

// nameChange is a kind of change.
type nameChange string

const (
	serviceCreated  nameChange = "a new Service"
	endpointChanged nameChange = "another endpoint of a headless Service"
	serviceDeleted  nameChange = "a Service deleted"
)

var nameChanges = []nameChange{serviceCreated, endpointChanged, serviceDeleted}

// names measures clusters with different numbers of Services, one after the other.
func (s settings) names(ctx context.Context) (*namesResults, error) {
	var r namesResults
	bin, err := s.kubernetesPrograms("etcd", "kube-apiserver", "coredns")
	if err != nil {
		r.Lacking = true
		say("names: without CoreDNS: %v", err)
	}
	for _, services := range s.nameServices {
		one, err := s.namesIn(ctx, bin, services)
		if err != nil {
			return nil, fmt.Errorf("names of %d Services: %w", services, err)
		}
		r.Worlds = append(r.Worlds, one)
	}
	return &r, nil
}

// nameServer is a server on a node of its own, with a pod that asks it.
type nameServer struct {
	name      string
	node, pod *worker
	// from are the pod's addresses.
	from []netip.Addr
	log  string
	// processes are the server's, by what they are called in the report.
	processes map[string]int
}

// namesCluster is everything that runs for a measurement.
type namesCluster struct {
	dir     string
	network *handmade
	outside *worker
	servers []*nameServer
	// control is nil where there is no API server, and reg with it.
	control *controlplane.ControlPlane
	reg     *kubernetes.Registry
	journal *journal.Journal
	// fed ends with the error that ended feeding Weft's server.
	fed *errgroup.Group
	// stop has it end.
	stop context.CancelFunc
}

func (c *namesCluster) close() (err error) {
	if c.fed != nil {
		c.stop()
		if err = c.fed.Wait(); errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	if c.journal != nil {
		err = errors.Join(err, c.journal.Close())
	}
	if c.reg != nil {
		err = errors.Join(err, c.reg.Close())
	}
	if c.control != nil {
		c.control.Stop()
	}
	c.network.close()
	return errors.Join(err, os.RemoveAll(c.dir))
}

// server returns the one of a name, nil where it is left out.
func (c *namesCluster) server(name string) *nameServer {
	if i := slices.IndexFunc(c.servers, func(s *nameServer) bool { return s.name == name }); i >= 0 {
		return c.servers[i]
	}
	return nil
}

func (s settings) namesIn(ctx context.Context, bin string, services int) (r namesResult, err error) {
	say("names: building a cluster with %d Services", services)
	r.Services = services
	c, err := newNamesCluster(bin)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	ready, cancel := context.WithTimeout(ctx, namesReady)
	defer cancel()
	if err := c.start(ready, bin, filepath.Dir(s.weft), services); err != nil {
		return r, err
	}
	for _, server := range c.servers {
		r.Servers = append(r.Servers, server.name)
	}
	if r.Idle, err = c.memory(ctx); err != nil {
		return r, err
	}
	if err := c.traffic(ctx, &r, s.rounds, s.sample); err != nil {
		return r, err
	}
	if c.reg != nil {
		say("names: %d changes", len(nameChanges)*namesChanges)
		if r.Changes, err = c.changes(ctx); err != nil {
			return r, err
		}
	}
	r.Busy, err = c.memory(ctx)
	return r, err
}

// newNamesCluster makes the network: a node for each server, each with a pod, and a switch
// where the API server is and the server for names outside.
func newNamesCluster(bin string) (*namesCluster, error) {
	names := []string{serverWeft, serverBare}
	if bin != "" {
		names = []string{serverWeft, serverCoreDNS, serverCached, serverBare}
	}
	dir, err := os.MkdirTemp("", "weft-bench-names-")
	if err != nil {
		return nil, err
	}
	h := new(handmade)
	c := &namesCluster{dir: dir, network: h}
	const sw = "names switch"
	h.add(sw)
	h.ip(sw, fmt.Sprintf(`link set lo up
link add br0 mtu %d type bridge
address add %s/16 dev br0
link set br0 up
`, underlayMTU, namesOutside))
	for i, name := range names {
		node, pod := "node of "+name, "pod of "+name
		s := &nameServer{name: name, log: filepath.Join(dir, fmt.Sprintf("server%d.log", i)), processes: make(map[string]int)}
		h.add(node)
		h.add(pod)
		h.ip(sw, fmt.Sprintf(`link add port%d mtu %d master br0 type veth peer name eth0 mtu %[2]d netns %d
link set port%[1]d up
route add 10.244.%[1]d.0/24 via 172.30.1.%[1]d
`, i, underlayMTU, h.pid(node)))
		h.ip(node, fmt.Sprintf(`link set lo up
address add %s/32 dev lo
address add 172.30.1.%d/16 dev eth0
link set eth0 up
route add default via %s
link add veth0 mtu %d type veth peer name eth0 mtu %[4]d netns %d
link set veth0 up
address add 169.254.1.1/32 dev veth0
route add 10.244.%[2]d.0/24 dev veth0
`, namesAddress, i, namesOutside, underlayMTU, h.pid(pod)))
		addresses := new(strings.Builder)
		for host := range byte(addressesEach) {
			a := netip.AddrFrom4([4]byte{10, 244, byte(i), 2 + host})
			s.from = append(s.from, a)
			fmt.Fprintf(addresses, "address add %s/32 dev eth0\n", a)
		}
		h.ip(pod, fmt.Sprintf(`link set lo up
%slink set eth0 up
route add 169.254.1.1 dev eth0 scope link
route add default via 169.254.1.1 dev eth0
`, addresses))
		h.forward(node)
		s.node, s.pod = h.workers[node], h.workers[pod]
		c.servers = append(c.servers, s)
	}
	c.outside = h.workers[sw]
	if err := h.done(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return c, nil
}

// start starts everything, and returns once all servers answer.
func (c *namesCluster) start(ctx context.Context, bin, weft string, services int) error {
	if _, err := c.outside.do(request{Do: doUpstream, To: namesOutside}); err != nil {
		return err
	}
	objects := namesObjects(services)
	if bin != "" {
		if err := c.startCluster(ctx, bin, objects); err != nil {
			return err
		}
	}
	if err := c.feed(ctx, objects); err != nil {
		return err
	}
	for _, s := range c.servers {
		if err := c.startServer(s, bin, weft); err != nil {
			return err
		}
	}
	_, _, last := namedService(services - 1)
	for _, s := range c.servers {
		limit, _ := ctx.Deadline()
		if err := s.await(awaiting{Name: last, Address: serviceAddress(services - 1)}, time.Until(limit)); err != nil {
			return err
		}
	}
	weftServer := c.server(serverWeft)
	children, err := childrenOf(weftServer.processes[processKeeper])
	if err != nil {
		return err
	}
	if len(children) != 1 {
		return fmt.Errorf("weft-dns has %d processes, not 1%s", len(children), process.Tail(weftServer.log))
	}
	weftServer.processes[processServer] = children[0]
	return nil
}

// The processes of the report.
const (
	processKeeper  = "weft-dns"
	processServer  = "weft-dns-server"
	processCoreDNS = "coredns"
	processCached  = "coredns, all cached"
)

// startCluster starts an API server with objects.
func (c *namesCluster) startCluster(ctx context.Context, bin string, objects map[*registry.Kind][]registry.Object) (err error) {
	c.control, err = controlplane.Start(ctx, controlplane.Config{Bin: bin, Dir: filepath.Join(c.dir, "controlplane"), NetNS: c.outside.namespace(),
		Address: namesOutside, Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer}})
	if err != nil {
		return err
	}
	if c.reg, err = kubernetes.Open(kubernetes.Config{REST: c.control.RESTConfig(), Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	for _, k := range []*registry.Kind{api.Namespace, api.Service, api.EndpointSlice} {
		if err := create(ctx, c.reg, k, objects[k]); err != nil {
			return err
		}
	}
	return nil
}

// feed does for Weft's server what an agent does: it compiles the objects, those of the API
// server where there is one, and writes what changes to the file that the server follows.
func (c *namesCluster) feed(ctx context.Context, objects map[*registry.Kind][]registry.Object) (err error) {
	if c.journal, err = journal.Open(c.records()); err != nil {
		return err
	}
	var clients []records.Client
	for _, a := range c.server(serverWeft).from {
		clients = append(clients, records.Client{Address: a, Namespace: namesNamespace(0)})
	}
	var compiler compile.Compiler
	var before *compile.Snapshot
	round := func(objects registry.Objects) error {
		now := compiler.Compile(objects)
		changed, gone := now.Since(before)
		before = now
		return c.journal.Put(namesSettings(), now.Namespaces, changed, gone, clients)
	}
	if c.reg == nil {
		return round(registry.NewSnapshot(objects))
	}
	background, stop := context.WithCancel(context.Background())
	c.fed, background = errgroup.WithContext(background)
	c.stop = stop
	cache := registry.NewCache(c.reg, compile.Kinds, slog.New(slog.DiscardHandler))
	c.fed.Go(func() error {
		cache.Run(background)
		return nil
	})
	if err := cache.WaitSynced(ctx); err != nil {
		return err
	}
	c.fed.Go(func() error {
		changed, cancel := cache.Subscribe()
		defer cancel()
		for {
			select {
			case <-background.Done():
				return background.Err()
			case <-changed:
			}
			if err := round(cache.Snapshot()); err != nil {
				return err
			}
		}
	})
	return nil
}

// records is the path of the file that Weft's server follows.
func (c *namesCluster) records() string { return filepath.Join(c.dir, "records", "records") }

func (c *namesCluster) startServer(s *nameServer, bin, weft string) error {
	var called, path string
	var args []string
	switch s.name {
	case serverBare:
		_, err := s.node.do(request{Do: doConstant, To: namesAddress})
		return err
	case serverWeft:
		called = processKeeper
		path, args = filepath.Join(weft, "weft-dns"), []string{"-socket", filepath.Join(c.dir, "dns.sock"), "--", "-records", c.records()}
	default:
		called = processCoreDNS
		if s.name == serverCached {
			called = processCached
		}
		cert, key, err := c.control.PKI().IssueFiles(filepath.Base(s.log), controlplane.Certificate{User: "coredns", Groups: []string{"system:masters"}})
		if err != nil {
			return err
		}
		ca := s.log + ".ca"
		if err := os.WriteFile(ca, c.control.PKI().CA(), 0o600); err != nil {
			return err
		}
		config := s.log + ".corefile"
		if err := os.WriteFile(config, []byte(corefile(c.control.Server(), cert, key, ca, s.name == serverCached)), 0o600); err != nil {
			return err
		}
		path, args = filepath.Join(bin, "coredns"), []string{"-conf", config}
	}
	pid, err := s.node.start(s.log, path, args...)
	s.processes[called] = pid
	return err
}

// await returns once a server that has just been started answers as it should.
func (s *nameServer) await(w awaiting, limit time.Duration) error {
	if s.name == serverBare {
		return nil
	}
	_, err := s.pod.do(request{Do: doAwait, To: namesAddress, Await: w, For: limit})
	if err != nil {
		return fmt.Errorf("%w%s", err, process.Tail(s.log))
	}
	return nil
}

// childrenOf returns the processes that a process started from its first thread or any other.
func childrenOf(pid int) (all []int, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended, and others have its children
		}
		if err != nil {
			return nil, err
		}
		for word := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			all = append(all, child)
		}
	}
	return all, nil
}

// memory is that of the servers' processes after nobody asked for a while.
func (c *namesCluster) memory(ctx context.Context) (map[string]memory, error) {
	select {
	case <-time.After(namesRest):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	all := make(map[string]memory)
	for _, s := range c.servers {
		for called, pid := range s.processes {
			m, err := processMemory(pid)
			if err != nil {
				return nil, fmt.Errorf("%s: %w%s", called, err, process.Tail(s.log))
			}
			all[called] = m
		}
	}
	return all, nil
}

// traffic asks all servers in turns: in each round for each kind of load in an order drawn
// anew.
func (c *namesCluster) traffic(ctx context.Context, r *namesResult, rounds int, d time.Duration) error {
	r.Traffic = make(map[namesLoad]map[string][]sample)
	r.LookUps = make(map[lookUpKind]map[string][]lookUpSample)
	for _, l := range namesLoads {
		r.Traffic[l] = make(map[string][]sample)
	}
	for _, k := range lookUpKinds {
		r.LookUps[k] = make(map[string][]lookUpSample)
	}
	for round := range rounds {
		say("names: round %d of %d", round+1, rounds)
		for _, l := range namesLoads {
			q := l.asking(r.Services)
			for _, i := range rand.Perm(len(c.servers)) {
				s := c.servers[i]
				if err := ctx.Err(); err != nil {
					return err
				}
				q.From = s.from
				got, err := s.pod.do(request{Do: doAsk, To: namesAddress, Ask: q, For: d})
				if err != nil {
					return fmt.Errorf("%w%s", err, process.Tail(s.log))
				}
				r.Traffic[l][s.name] = append(r.Traffic[l][s.name], got)
			}
		}
		for _, k := range lookUpKinds {
			for _, i := range rand.Perm(len(c.servers)) {
				s := c.servers[i]
				got, err := c.lookUps(s, k, d)
				if err != nil {
					return fmt.Errorf("%w%s", err, process.Tail(s.log))
				}
				name := k.server(s.name)
				r.LookUps[k][name] = append(r.LookUps[k][name], got)
			}
		}
	}
	return nil
}

// lookUps takes a sample. What is to be reached at best is asked for each name as it is.
func (c *namesCluster) lookUps(s *nameServer, k lookUpKind, d time.Duration) (r lookUpSample, err error) {
	l := lookups{Search: search(), From: s.from[0]}
	to := namesAddress
	if s.name == serverBare {
		l.Search = nil
	}
	if k.server(s.name) == serverNone {
		to = namesOutside
	}
	if k == lookUpAgain {
		l.Names = outsideNames()
		// So that the server knows them all.
		if _, err := s.pod.do(request{Do: doLookUp, To: to, LookUp: l, For: d / 2}); err != nil {
			return r, err
		}
	} else {
		l.Fresh = fmt.Sprintf("fresh%08x", rand.Uint32())
	}
	before, err := c.outside.do(request{Do: doCount})
	if err != nil {
		return r, err
	}
	if r.sample, err = s.pod.do(request{Do: doLookUp, To: to, LookUp: l, For: d}); err != nil {
		return r, err
	}
	after, err := c.outside.do(request{Do: doCount})
	r.Upstream = after.Count - before.Count
	return r, err
}

// changes makes changes, the kinds in turns, and times each until the servers answer
// accordingly.
func (c *namesCluster) changes(ctx context.Context) (map[nameChange]map[string][]time.Duration, error) {
	times := make(map[nameChange]map[string][]time.Duration)
	for _, kind := range nameChanges {
		times[kind] = make(map[string][]time.Duration)
	}
	namespace := namesNamespace(0)
	key := registry.KeyOf(newEndpoints(namespace, headless))
	for i := range namesChanges {
		name, address := fmt.Sprintf("change%03d", i), changedAddress(i)
		endpoints := newEndpoints(namespace, headless, headlessAddress(i+1))
		old, err := c.reg.Get(ctx, api.EndpointSlice, key)
		if err != nil {
			return nil, err
		}
		endpoints.ResourceVersion = old.GetResourceVersion()
		for _, change := range []struct {
			kind  nameChange
			await awaiting
			write func() error
		}{
			{serviceCreated, awaiting{serviceName(namespace, name), address}, func() error {
				_, err := c.reg.Create(ctx, api.Service, newService(namespace, name, address.String()))
				return err
			}},
			{endpointChanged, awaiting{serviceName(namespace, headless), headlessAddress(i + 1)}, func() error {
				_, err := c.reg.Update(ctx, api.EndpointSlice, endpoints)
				return err
			}},
			{serviceDeleted, awaiting{Name: serviceName(namespace, name)}, func() error {
				return c.reg.Delete(ctx, api.Service, registry.Key{Namespace: namespace, Name: name}, "")
			}},
		} {
			took, err := c.timeChange(ctx, change.await, change.write)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", change.kind, err)
			}
			for who, t := range took {
				times[change.kind][who] = append(times[change.kind][who], t)
			}
		}
	}
	for _, byServer := range times {
		for _, t := range byServer {
			slices.Sort(t)
		}
	}
	return times, nil
}

// beforehand is how long servers are asked before a change.
const beforehand = 10 * time.Millisecond

// timeChange asks two servers at once until both answer as they should after a change, and
// returns how long that took each from the beginning of the write, and how long the write did.
func (c *namesCluster) timeChange(ctx context.Context, w awaiting, write func() error) (map[string]time.Duration, error) {
	asked := []*nameServer{c.server(serverWeft), c.server(serverCoreDNS)}
	at := make([]time.Duration, len(asked))
	var asking errgroup.Group
	for i, s := range asked {
		asking.Go(func() error {
			got, err := s.pod.do(request{Do: doAwait, To: namesAddress, Await: w, For: changeLimit})
			at[i] = got.At
			return err
		})
	}
	time.Sleep(beforehand)
	began, clock := monotonic()
	start := time.Now()
	err := write()
	took := map[string]time.Duration{written: time.Since(start)}
	if err := errors.Join(err, clock, asking.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	for i, s := range asked {
		took[s.name] = at[i] - began
	}
	return took, nil
}
