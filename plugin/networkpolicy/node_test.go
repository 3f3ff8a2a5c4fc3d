package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

func identity(namespace string, words ...string) *policy.Identity {
	id := &policy.Identity{Namespace: namespace, Labels: labels.Set{}}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		id.Labels[key] = value
	}
	return id
}

// TestAllocateAtOnce lets many agents allocate for the same pods at once: they
// all get the same Tag, and no Tag is made in vain.
func TestAllocateAtOnce(t *testing.T) {
	w := newWorld(t)
	const agents, kinds = 16, 20
	got := make([][]string, agents)
	var wg sync.WaitGroup
	for a := range agents {
		got[a] = make([]string, kinds)
		wg.Go(func() {
			for k := range kinds {
				k = (k + a) % kinds
				o, err := allocate(t.Context(), w.registry, identity("shop", fmt.Sprint("app=", k)), nil)
				if err != nil {
					t.Error(err)
					return
				}
				got[a][k] = o.Name
			}
		})
	}
	wg.Wait()
	for a := range agents {
		if d := cmp.Diff(got[0], got[a]); d != "" {
			t.Errorf("agents 0 and %d differ:\n%s", a, d)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(got[0])))); n != kinds {
		t.Errorf("%d kinds of pods have %d tags", kinds, n)
	}
	if n := len(all[*api.Tag](w, api.TagKind)); n != kinds {
		t.Errorf("there are %d Tags for %d kinds of pods", n, kinds)
	}
}

// TestAllocateWhereNumbersAreTaken has other things where the numbers lead: the first,
// which anybody can tell beforehand, and some of those that are drawn.
func TestAllocateWhereNumbersAreTaken(t *testing.T) {
	w := newWorld(t)
	id := identity("shop", "app=web")
	take := func(n plan.Tag, spec api.TagSpec) {
		w.create(api.TagKind, &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: tagName(n)}, Spec: spec})
	}
	from := func(numbers ...plan.Tag) func() plan.Tag {
		return func() plan.Tag {
			n := numbers[0]
			numbers = numbers[1:]
			return n
		}
	}
	take(candidate(id), specOf(identity("other", "app=web")))
	w.registry.PutValue(api.TagKind, registry.Key{Name: "20"}, []byte("{"))
	mark := metav1.NewTime(time.Unix(0, 0))
	marked := specOf(id)
	marked.UnusedSince = &mark
	take(30, marked)
	w.registry.SetLog(slog.New(slog.DiscardHandler))
	o, err := allocate(t.Context(), w.registry, id, from(20, 30, 40))
	if err != nil || o.Name != "30" || o.Spec.UnusedSince != nil {
		t.Fatalf("got %+v, %v", o, err)
	}
	w.remove(api.TagKind, registry.Key{Name: "30"})
	if o, err := allocate(t.Context(), w.registry, id, from(20, 40)); err != nil || o.Name != "40" {
		t.Errorf("got %+v, %v", o, err)
	}
	other := identity("third")
	take(candidate(other), specOf(id))
	if o, err := allocate(t.Context(), w.registry, other, func() plan.Tag { return 40 }); err == nil || !strings.Contains(err.Error(), "third") {
		t.Errorf("got %+v, %v", o, err)
	}
}

// TestDraw draws numbers for Tags: nobody can tell which, they are in bounds, and what is
// taken is not among them.
func TestDraw(t *testing.T) {
	w := newWorld(t)
	for n := range 1000 {
		w.create(api.TagKind, &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: tagName(plan.Tag(api.MinTag + n))}, Spec: specOf(identity("shop", fmt.Sprint("app=", n)))})
	}
	var known tags
	known.update(w.snapshot(collectorKinds))
	drawn := map[plan.Tag]bool{}
	for range 10000 {
		n := known.draw()
		if n < api.MinTag+1000 || n > api.MaxTag {
			t.Fatalf("it draws %d", n)
		}
		drawn[n] = true
	}
	if len(drawn) < 9900 {
		t.Errorf("of 10000 numbers, %d are different ones", len(drawn))
	}
}

// Pods with more labels than others are told of are no pods' to them, whatever they were
// before. Others are told of all the same.
func TestLabelsThatAreTooLarge(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		large := []string{"app=friend", "10.1.1.2"}
		for i := range 300 {
			large = append(large, fmt.Sprintf("%d/%s=%s", i, strings.Repeat("k", 20), strings.Repeat("v", 60)))
		}
		r := newRunner(m.env(w.registry))
		m.start("evil/pod", "app=friend", "10.1.1.2")
		if _, err := r.round(t.Context(), m.input(), nil); err != nil {
			t.Fatal(err)
		}
		w.remove(api.Pod, registry.Key{Namespace: "evil", Name: "pod"})
		m.pods = nil
		m.start("evil/pod", large...)
		m.start("shop/web", "app=web", "10.1.1.3")
		time.Sleep(gather)
		if _, err := r.round(t.Context(), m.input(), nil); err == nil || !strings.Contains(err.Error(), "namespace evil") || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("it is refused with %v", err)
		}
		pods := all[*api.NodePods](w, api.NodePodsKind)
		if len(pods) != 1 || len(pods[0].Pods) != 1 || !slices.Equal(pods[0].Pods[0].Addresses, []string{"10.1.1.3"}) {
			t.Errorf("others are told %+v", pods[0].Pods)
		}
		// Who writes such a Tag himself says nothing by it.
		o := &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: "77"}, Spec: specOf(r.now.locals.list[0].Identity)}
		if read := readTag(o, nil); read.group != nil || read.problem == nil {
			t.Errorf("it is read as %+v", read)
		}
	})
}

// TestKilledAtEachCall kills the agent instead of each of its calls to the
// registry in turn, starts another, and wants in the end what an undisturbed one
// leaves.
func TestKilledAtEachCall(t *testing.T) {
	run := func(kill int) (states []string, calls int) {
		bubble(t, func(t *testing.T, w *world) {
			m := &machine{world: w, name: "node1"}
			g := &gate{}
			start := func() *runner {
				g = &gate{Registry: w.registry, allow: func(string) bool { calls++; return calls-1 != kill }}
				return newRunner(m.env(g))
			}
			r := start()
			settleDown := func() {
				for range 10 {
					in := m.input()
					m.apply(plugin.CompilerOf(On(flat{}, "p")), in)
					_, err := r.round(t.Context(), in, m.lastApplied())
					time.Sleep(catchUp)
					if err != nil && !errors.Is(err, errKilled) {
						t.Fatal(err)
					}
					if g.killed {
						r = start()
					}
				}
				states = append(states, w.state())
			}
			w.apply(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: p}, spec: {podSelector: {}}}`)
			m.start("shop/web", "app=web", "10.1.1.2")
			m.start("shop/db", "app=db", ":sql=5432", "10.1.1.3")
			settleDown()
			m.start("shop/web-2", "app=web", "10.1.1.4")
			m.stop("shop/db")
			settleDown()
			// The controller found one unused, just before it is needed again.
			for _, o := range all[*api.Tag](w, api.TagKind) {
				mark := metav1.Now()
				o.Spec.UnusedSince = &mark
				if _, err := w.registry.Update(t.Context(), api.TagKind, o); err != nil {
					t.Fatal(err)
				}
			}
			m.start("shop/db", "app=db", ":sql=5432", "10.1.1.5")
			settleDown()
			w.remove(api.NodePodsKind, registry.Key{Name: "node1"})
			for _, o := range all[*api.Tag](w, api.TagKind) {
				w.remove(api.TagKind, registry.KeyOf(o))
			}
			settleDown()
		})
		return states, calls
	}
	want, calls := run(-1)
	if calls < 15 {
		t.Fatalf("the story has %d calls only", calls)
	}
	for kill := range calls {
		got, _ := run(kill)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("killed instead of call %d: -want +got\n%s", kill, d)
		}
	}
}

// TestPodsAreGathered lets pods start in a hurry: the first is told of at once,
// the others together.
func TestPodsAreGathered(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		var writes []string
		g := &gate{Registry: w.registry, allow: func(call string) bool {
			if strings.Contains(call, " nodepods ") && !strings.HasPrefix(call, "get") {
				writes = append(writes, call)
			}
			return true
		}}
		r := newRunner(m.env(g))
		look := func() time.Duration {
			t.Helper()
			wait, err := r.round(t.Context(), m.input(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return wait
		}
		m.start("shop/web-0", "app=web", "10.1.1.2")
		look()
		if len(writes) != 1 {
			t.Fatalf("after the first pod: %q", writes)
		}
		var wait time.Duration
		for i := range 20 {
			m.start(fmt.Sprint("shop/web-", i+1), "app=web", fmt.Sprint("10.1.1.", i+3))
			time.Sleep(time.Millisecond)
			wait = look()
		}
		if len(writes) != 1 || wait <= 0 || wait > gather {
			t.Fatalf("while they start: %q, looking again in %s", writes, wait)
		}
		time.Sleep(wait)
		look()
		look() // an event that says nothing new
		if len(writes) != 2 {
			t.Fatalf("when they have started: %q", writes)
		}
		n := all[*api.NodePods](w, api.NodePodsKind)
		if len(n) != 1 || len(n[0].Pods) != 1 || len(n[0].Pods[0].Addresses) != 21 {
			t.Errorf("others were told of %+v", n)
		}
	})
}

// An agent that is behind its own writes does not write them again; what stays
// lost is put back.
func TestBehindItsOwnWrites(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		calls := 0
		r := newRunner(m.env(&gate{Registry: w.registry, allow: func(string) bool { calls++; return true }}))
		w.apply(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: p}, spec: {podSelector: {}}}`)
		m.start("shop/web", "app=web", "10.1.1.2")
		behind := m.input()
		m.apply(plugin.CompilerOf(On(flat{}, "p")), behind)
		look := func(in plugin.Input) time.Duration {
			t.Helper()
			wait, err := r.round(t.Context(), in, m.lastApplied())
			if err != nil {
				t.Fatal(err)
			}
			return wait
		}
		look(behind)
		before, had := calls, w.state()
		if wait := look(behind); calls != before || wait <= 0 || wait > catchUp {
			t.Fatalf("%d more calls, looking again in %s", calls-before, wait)
		}
		w.remove(api.NodePodsKind, registry.Key{Name: "node1"})
		w.remove(api.NodeReportKind, registry.Key{Name: "node1"})
		for _, o := range all[*api.Tag](w, api.TagKind) {
			w.remove(api.TagKind, registry.KeyOf(o))
		}
		time.Sleep(catchUp)
		if look(m.input()); w.state() != had {
			t.Fatalf("put back:\n%s", cmp.Diff(had, w.state()))
		}
		// Where the report alone is gone, nobody tells the agent.
		w.remove(api.NodeReportKind, registry.Key{Name: "node1"})
		time.Sleep(recheck)
		if look(m.input()); w.state() != had {
			t.Fatalf("put back:\n%s", cmp.Diff(had, w.state()))
		}
	})
}

// refusing is a registry that makes no Tags.
type refusing struct{ registry.Registry }

func (r refusing) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if k == api.TagKind {
		return nil, errors.New("no more Tags")
	}
	return r.Registry.Create(ctx, k, o, opts...)
}

// Pods that can get no Tag keep none of the others from being told of, and what
// was told of them before stays.
func TestNoTag(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		m.start("shop/web", "app=web", "10.1.1.2")
		m.start("shop/db", "app=db", "10.1.1.3")
		if _, err := newRunner(m.env(w.registry)).round(t.Context(), m.input(), nil); err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(w.state(), "10.1.1.3]", "10.1.1.3 10.1.1.4]")
		lost, err := w.registry.Get(t.Context(), api.TagKind, registry.Key{Name: tagName(candidate(identity("shop", "app=web")))})
		if err != nil {
			t.Fatal(err)
		}
		w.remove(api.TagKind, registry.KeyOf(lost))
		m.start("shop/db-2", "app=db", "10.1.1.4")
		m.start("shop/new", "app=new", "10.1.1.5")
		r := newRunner(m.env(refusing{w.registry}))
		if _, err := r.round(t.Context(), m.input(), nil); err == nil || !strings.Contains(err.Error(), "no more Tags") {
			t.Errorf("it failed with %v", err)
		}
		lost.SetResourceVersion("")
		w.create(api.TagKind, lost)
		if d := cmp.Diff(want, w.state()); d != "" {
			t.Error(d)
		}
	})
}

// Who gives a pod other labels all the time causes a Tag each time, but no more
// than a namespace has a budget for; and others' pods do not wait for that.
func TestTagsThatLabelsCause(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		r := newRunner(m.env(w.registry))
		tags := func(namespace string) (n int) {
			t.Helper()
			all, _, err := w.registry.List(t.Context(), api.TagKind)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all {
				if o.(*api.Tag).Spec.Namespace == namespace {
					n++
				}
			}
			return n
		}
		refused := 0
		for i := range tagsAtOnce + 50 {
			m.start("evil/pod", fmt.Sprint("app=", i), "10.1.1.2")
			if _, err := r.round(t.Context(), m.input(), nil); err != nil {
				if !strings.Contains(err.Error(), "namespace evil") || !strings.Contains(err.Error(), "sets of labels") {
					t.Fatal(err)
				}
				refused++
			}
			m.stop("evil/pod")
		}
		if n := tags("evil"); n != tagsAtOnce || refused != 50 {
			t.Errorf("there are %d Tags, and %d were refused", n, refused)
		}
		m.start("evil/pod", "app=more", "10.1.1.2")
		m.start("shop/web", "app=web", "10.1.1.3")
		if _, err := r.round(t.Context(), m.input(), nil); err == nil || tags("shop") != 1 {
			t.Errorf("another namespace has %d Tags; the error is %v", tags("shop"), err)
		}
		settle(10 * time.Second)
		if _, err := r.round(t.Context(), m.input(), nil); err != nil || tags("evil") != tagsAtOnce+1 {
			t.Errorf("after a while there are %d Tags; the error is %v", tags("evil"), err)
		}
	})
}

// Trouble with the registry is tried again, and told to the node's readiness only
// if it lasts.
func TestTrouble(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		var mu sync.Mutex
		problem := ""
		said := func() string {
			mu.Lock()
			defer mu.Unlock()
			return problem
		}
		env := m.env(w.registry)
		env.Problem = func(s string) { mu.Lock(); problem = s; mu.Unlock() }
		env.Changed, env.Applied = make(chan struct{}), func() *plugin.Applied { return nil }
		m.start("shop/web", "app=web", "10.1.1.2")
		in := m.input()
		env.Input = func() (plugin.Input, bool) { return in, true }
		w.registry.Stop()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- On(flat{}, "p").(plugin.NodeRunner).RunNode(ctx, env) }()
		settle(patience / 2)
		if said() != "" {
			t.Errorf("at once: %q", said())
		}
		settle(patience)
		if !strings.Contains(said(), "shop") {
			t.Errorf("after a while: %q", said())
		}
		w.registry.Start()
		settle(backoff.Last)
		if said() != "" || len(all[*api.NodePods](w, api.NodePodsKind)) != 1 {
			t.Errorf("when it is over: %q\n%s", said(), w.state())
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// runs is a plug-in that has work of its own.
type runs struct {
	flat
	node chan plugin.NodeEnv
}

func (r runs) RunNode(ctx context.Context, env plugin.NodeEnv) error {
	r.node <- env
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-env.Changed:
			env.Problem("seen")
		}
	}
}

func (runs) RunCluster(context.Context, plugin.ClusterEnv) error { return nil }

// The plug-in below is run, too, and hears of all changes.
func TestBaseRuns(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		base := runs{node: make(chan plugin.NodeEnv, 1)}
		m := &machine{world: w, name: "node1"}
		env := m.env(w.registry)
		changed, problems, inputs := make(chan struct{}), make(chan string, 10), make(chan struct{}, 10)
		env.Changed, env.Applied = changed, func() *plugin.Applied { return nil }
		env.Problem = func(s string) { problems <- s }
		env.Input = func() (plugin.Input, bool) { inputs <- struct{}{}; return plugin.Input{}, false }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		p := On(base, "p")
		go func() { ended <- p.(plugin.NodeRunner).RunNode(ctx, env) }()
		<-base.node
		<-inputs
		if s := <-problems; s != "" {
			t.Errorf("a problem: %q", s)
		}
		changed <- struct{}{}
		<-inputs
		settle(0)
		// Whoever of the two looked last, what the other said stands.
		for len(problems) > 1 {
			<-problems
		}
		if s := <-problems; s != "seen" {
			t.Errorf("a problem: %q", s)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		work := plugin.ClusterWork(p, base)
		if names := slices.Sorted(maps.Keys(work)); !slices.Equal(names, []string{base.Name(), "networkpolicy"}) || work["networkpolicy"] != p.(plugin.ClusterRunner) {
			t.Errorf("the work for the cluster is %v", names)
		}
		if kinds := p.Kinds(); !slices.Contains(kinds, api.TagKind) || slices.Contains(kinds, api.NodeReportKind) {
			t.Errorf("kinds %v", kinds)
		}
	})
}

func TestReached(t *testing.T) {
	for _, c := range []struct {
		at, version string
		want        bool
	}{
		{"10", "9", true}, {"9", "10", false}, {"10", "10", true}, {"010", "10", true}, {"", "1", false}, {"1", "", false}, {"", "", true},
		{"100000000000000000000000000000001", "100000000000000000000000000000000", true},
		{"99999999999999999999999999999999", "100000000000000000000000000000000", false},
		{"x10", "9", false}, {"same", "same", true}, {"-10", "9", false},
	} {
		if got := reached(c.at, c.version); got != c.want {
			t.Errorf("a node at %q reached %q: %t", c.at, c.version, got)
		}
	}
}

func TestNews(t *testing.T) {
	report := func(problem string, words ...string) *api.NodeReport {
		r := &api.NodeReport{Enforced: map[string]string{}}
		for _, word := range words {
			kind, version, _ := strings.Cut(word, "=")
			r.Enforced[kind] = version
		}
		if problem != "" {
			r.Problems = []api.PolicyProblem{{Message: problem}}
		}
		return r
	}
	for _, c := range []struct {
		said, now       *api.NodeReport
		stranger, wants bool
	}{
		{report(""), report(""), true, false},
		{report("", "a=1"), report("", "a=2"), false, true},
		{report("", "a=2"), report("", "a=1"), false, false},
		{report("", "a=2"), report("", "a=1"), true, true},
		{report("", "a=2"), report("", "a=2", "b=1"), false, true},
		{report("", "a=2", "b=1"), report("", "a=2"), false, false},
		{report("bad", "a=2"), report("", "a=2"), false, true},
		{report("bad", "a=2"), report("worse", "a=2"), false, true},
	} {
		if got := news(c.said, c.now, c.stranger); got != c.wants {
			t.Errorf("said %v, now %v, by a stranger %t: news %t", c.said, c.now, c.stranger, got)
		}
	}
}

// A report is bounded, however much there is to say.
func TestReportIsBounded(t *testing.T) {
	var problems []plugin.Problem
	for i := range 3 * maxProblems {
		problems = append(problems, plugin.Problem{Kind: api.NetworkPolicy, Key: registry.Key{Namespace: "shop", Name: fmt.Sprint(i)},
			Message: strings.Repeat("é", maxMessage)}, plugin.Problem{Kind: api.HostSubnet, Message: "not of a policy"})
	}
	r := reportOf(&view{}, problems)
	if len(r.Problems) != maxProblems || len(r.Problems[0].Message) > maxMessage || r.Problems[0].Kind != "NetworkPolicy" {
		t.Errorf("%d problems, the first is %+v", len(r.Problems), r.Problems[0])
	}
	if !slices.Equal(r.Untold, []string{"shop"}) {
		t.Errorf("untold are %q", r.Untold)
	}
	// One namespace with many does not hide the others'.
	problems = append(problems, plugin.Problem{Kind: api.NetworkPolicy, Key: registry.Key{Namespace: "zoo", Name: "last"}, Message: "wrong"})
	r = reportOf(&view{}, problems)
	if len(r.Problems) != maxProblems || r.Problems[maxProblems-1].Namespace != "zoo" || !slices.Equal(r.Untold, []string{"shop"}) {
		t.Errorf("%d problems, the last is %+v, untold are %q", len(r.Problems), r.Problems[maxProblems-1], r.Untold)
	}
}

func TestFormat(t *testing.T) {
	a := netip.MustParseAddr
	got := format(map[plan.Tag][]netip.Addr{
		700: {a("10.1.1.10"), a("10.1.1.9"), a("10.1.1.9")}, 80: {a("fd00::1"), a("10.1.1.8")},
	})
	want := []api.TaggedPods{{Tag: 80, Addresses: []string{"10.1.1.8", "fd00::1"}}, {Tag: 700, Addresses: []string{"10.1.1.9", "10.1.1.10"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Policies that the compiler has left for later are said only if that lasts, and
// nothing is said to be in force meanwhile.
func TestWhatIsLeftForLaterIsSaidIfItLasts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &machine{world: w, name: "node1"}
		r := newRunner(m.env(w.registry))
		applied := func(messages ...string) *plugin.Applied {
			a := &plugin.Applied{Input: m.input()}
			for _, message := range messages {
				a.Problems = append(a.Problems, plugin.Problem{Kind: api.NetworkPolicy, Key: registry.Key{Namespace: "shop", Name: "large"}, Message: message, Told: true})
			}
			return a
		}
		report := func(a *plugin.Applied) (wait time.Duration, problems int) {
			t.Helper()
			wait, err := r.writeReport(t.Context(), m.name, a)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range all[*api.NodeReport](w, api.NodeReportKind) {
				problems += len(n.Problems)
			}
			return wait, problems
		}
		if wait, problems := report(applied(notYet, "another")); wait != moment || problems != 0 {
			t.Errorf("at once: %d problems, looking again in %v", problems, wait)
		}
		time.Sleep(moment / 2)
		if _, problems := report(applied("another")); problems != 1 {
			t.Errorf("when it is done: %d problems", problems)
		}
		for range 3 { // one after the other
			report(applied(notYet))
			time.Sleep(moment / 2)
		}
		if _, problems := report(applied(notYet, "another")); problems != 2 {
			t.Errorf("when it lasts: %d problems", problems)
		}
	})
}
