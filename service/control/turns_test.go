package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// rounds does one round for each text, long after the one before. Each word is a call for the namespace that is its
// first letter, of the kind that its further letters are, and "|" says for how many calls there is time. A call that ends with "!" is refused, and one that
// ends with "?" is not answered. It returns what is done in which order.
func rounds(t *testing.T, texts ...string) (done []string) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 10 * time.Millisecond
		var turn turns
		for _, text := range texts {
			due, most, _ := strings.Cut(text, "|")
			n := 1000
			_, _ = fmt.Sscan(most, &n)
			var order []string
			var calls []call
			for _, word := range strings.Fields(due) {
				about := strings.TrimRight(word, "!?")
				calls = append(calls, call{Namespace: word[:1], Kind: strings.TrimRight(about[1:], "0123456789"), About: about, Do: func(context.Context, registry.Registry) error {
					time.Sleep(takes)
					order = append(order, word)
					switch {
					case strings.HasSuffix(word, "!"):
						return registry.ErrInvalid
					case strings.HasSuffix(word, "?"):
						return registry.ErrUnavailable
					}
					return nil
				}})
			}
			for c := range turn.each(calls, time.Duration(n)*takes) {
				_ = c.Do(t.Context(), nil)
			}
			done = append(done, strings.Join(order, " "))
			time.Sleep(time.Hour)
		}
	})
	return done
}

func TestNamespacesAndKindsTakeTurns(t *testing.T) {
	for name, c := range map[string]struct{ rounds, done []string }{
		"those of one namespace keep their order": {[]string{"a1 a2 a3 b1 c1 c2"}, []string{"a1 b1 c1 a2 c2 a3"}},
		"who comes while another has much is next": {
			[]string{"a1 a2 a3 a4 a5 a6 |3", "a4 a5 a6 b1"},
			[]string{"a1 a2 a3", "a4 b1 a5 a6"},
		},
		"rounds that do little go through all": {
			[]string{"a1 a2 b1 b2 c1 c2 d1 |2", "a2 b2 c1 c2 d1 |2", "a2 b2 c2 |2", "a3 b2 c2 |2"},
			[]string{"a1 b1", "c1 d1", "a2 b2", "c2 a3"},
		},
		"who is served and comes again is behind those who wait": {
			[]string{"a1 b1 b2 c1 |2", "a2 b2 c1"},
			[]string{"a1 b1", "c1 b2 a2"},
		},
		"what fails comes last the next time": {
			[]string{"a1! a2! a3 a4 b1 |3", "a1! a2! a3 a4 |2", "a1! a2! |2"},
			[]string{"a1! b1 a2!", "a3 a4", "a1! a2!"},
		},
		"what fails keeps nothing else from being done, however much it is": {
			[]string{"a1! a2! a3! a4! a5 |1", "a1! a2! a3! a4! a5 |1", "a1! a2! a3! a4! a5 |2", "a1! a2! a3! a4! a5 |1", "a1! a2! a3! a4! |2"},
			[]string{"a1!", "a2!", "a3! a4!", "a5", "a1! a2!"},
		},
		"who has no turn goes on where it was": {
			[]string{"a1! a2! b1 |1", "a1! a2! b1 b2 |1", "a1! a2! b2 |1"},
			[]string{"a1!", "b1", "a2!"},
		},
		"who is not answered comes behind all others, and has one turn however much they have": {
			[]string{"a1? a2 b1 b2", "a1? a2 b1 b2 b3 |2", "a1? b1 c1"},
			[]string{"a1? b1 b2", "b1 b2 a2", "b1 a1? c1"},
		},
		"kinds of a namespace take turns, and so do namespaces": {
			[]string{"ax1 ax2 ax3 ay1 ay2 az1 b1 bx1"},
			[]string{"ax1 b1 ay1 bx1 az1 ax2 ay2 ax3"},
		},
		"kinds take turns from round to round, however much of one comes, and one that comes is next": {
			[]string{"ax1 ax2 ay1 ay2 |1", "ax2 ax3 ay1 ay2 |1", "ax3 ax4 ay2 az1 |1", "ax3 ax4 ay2 |1", "ax4 ax5 ay2 |1"},
			[]string{"ax1", "ay1", "az1", "ax3", "ay2"},
		},
		"what fails comes last of its kind": {
			[]string{"ax1! ax2 ay1 ay2 |1", "ax1! ax2 ay1 ay2 ay3"},
			[]string{"ax1!", "ay1 ax2 ay2 ax1! ay3"},
		},
		"who is not answered comes last of all kinds": {
			[]string{"ax1? ax2 ay1 |1", "ax1? ax2 ay1 ay2"},
			[]string{"ax1?", "ay1 ax2 ay2 ax1?"},
		},
		"who does not wait any more is passed over": {[]string{"a1 b1 c1 |1", "c1 a2"}, []string{"a1", "c1 a2"}},
	} {
		if done := rounds(t, c.rounds...); fmt.Sprint(done) != fmt.Sprint(c.done) {
			t.Errorf("%s: of %q it does %q, not %q", name, c.rounds, done, c.done)
		}
	}
}

// What a round has no time for is left for the next one.
func TestARoundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turns
		calls := make([]call, 10)
		for _, expected := range []int{4, 4, 2} {
			done := 0
			for range turn.each(calls, time.Second) {
				time.Sleep(300 * time.Millisecond)
				done++
			}
			if calls = calls[done:]; done != expected || (turn.again() > 0) != (len(calls) > 0) {
				t.Errorf("%d are done, not %d, and the next round is to be behind %v", done, expected, turn.again())
			}
		}
	})
}

// What failed waits ever longer, whatever else of its namespace is done or fails meanwhile, and as nothing else. It
// waits no more once it was done.
func TestWhatFailsWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turns
		tries := make(map[string]int)
		because := map[string]error{"refused": registry.ErrInvalid, "overtaken": registry.ErrConflict}
		var calls []call
		for _, name := range []string{"refused", "overtaken", "fine"} {
			calls = append(calls, call{Namespace: "shop", About: name, Do: func(context.Context, registry.Registry) error {
				tries[name]++
				return because[name]
			}})
		}
		const many = 6000
		round := func() {
			for c := range turn.each(calls, time.Hour) {
				_ = c.Do(t.Context(), nil)
			}
		}
		for range many {
			round()
			time.Sleep(backoff.First)
		}
		if tries["fine"] != many || tries["refused"] != tries["overtaken"] || tries["refused"] > 100 {
			t.Errorf("in 10 minutes it does %v", tries)
		}
		delete(because, "overtaken")
		time.Sleep(backoff.Last)
		round()
		clear(tries)
		round()
		if tries["overtaken"] != 1 || tries["refused"] != 0 {
			t.Errorf("after one was done it does %v", tries)
		}
	})
}

// Others have as long as a call took, however it ended and whatever was before.
func TestWhoTakesLongWaitsAsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turns
		for _, is := range []struct {
			takes time.Duration
			err   error
		}{{0, registry.ErrUnavailable}, {callTimeout, registry.ErrUnavailable}, {2 * roundTime, registry.ErrInvalid}, {5 * roundTime, nil}} {
			calls := []call{{Namespace: "slow", About: "a"}, {Namespace: "slow", About: "b"}}
			time.Sleep(turn.again())
			for i := range calls {
				calls[i].Do = func(context.Context, registry.Registry) error {
					time.Sleep(is.takes)
					return is.err
				}
			}
			done := 0
			for c := range turn.each(calls, time.Hour) {
				_ = c.Do(t.Context(), nil)
				done++
			}
			if behind := turn.again(); done != 1 || behind < is.takes {
				t.Errorf("%d calls take %v each, and the next round is behind %v", done, is.takes, behind)
			}
		}
	})
}

// In each round that is to be, something is tried.
func TestNoRoundIsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn turns
		tried := 0
		calls := []call{
			{Namespace: "bad", About: "hangs", Do: func(context.Context, registry.Registry) error {
				time.Sleep(callTimeout)
				return registry.ErrUnavailable
			}},
			{Namespace: "bad", About: "refused", Do: func(context.Context, registry.Registry) error { return registry.ErrInvalid }},
			{Namespace: "shop", About: "overtaken", Do: func(context.Context, registry.Registry) error { return registry.ErrConflict }},
		}
		for range 100 {
			before := tried
			for c := range turn.each(calls, roundTime) {
				_ = c.Do(t.Context(), nil)
				tried++
			}
			if behind := turn.again(); behind == 0 || tried == before {
				t.Fatalf("a round tries %d calls, and the next one is behind %v", tried-before, behind)
			} else {
				time.Sleep(behind)
			}
		}
	})
}

// failing is a registry that fails to write for namespaces that begin with "bad", and says nothing at all while it is away.
type failing struct {
	registry.Registry
	hangs bool
	mu    sync.Mutex
	away  bool
	// tried is how often it failed.
	tried int
}

func (r *failing) fail(ctx context.Context, namespace string) error {
	r.mu.Lock()
	fails := r.away || strings.HasPrefix(namespace, "bad")
	if fails {
		r.tried++
	}
	r.mu.Unlock()
	if !fails {
		return nil
	}
	if r.hangs {
		<-ctx.Done()
	}
	return registry.ErrUnavailable
}

func (r *failing) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	if err := r.fail(ctx, ""); err != nil {
		return nil, err
	}
	return r.Registry.Get(ctx, k, key)
}

func (r *failing) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := r.fail(ctx, o.GetNamespace()); err != nil {
		return nil, err
	}
	return r.Registry.Create(ctx, k, o, opts...)
}

func (r *failing) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := r.fail(ctx, o.GetNamespace()); err != nil {
		return nil, err
	}
	return r.Registry.Update(ctx, k, o, opts...)
}

// failures returns how often it failed until now.
func (r *failing) failures() int {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tried
}

// withFailing has the controller run on a registry that fails, where there are Services in some namespaces.
func withFailing(t *testing.T, hangs bool, namespaces []string, then func(t *testing.T, r *failing, put func(namespace, name string))) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := memory.New()
		r := &failing{Registry: m, hangs: hangs}
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/16"}}}
		config.Name = api.DefaultName
		if _, err := m.Create(ctx, api.ClusterConfigKind, config); err != nil {
			t.Fatal(err)
		}
		put := func(namespace, name string) {
			if _, err := m.Create(ctx, api.Service, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, namespace := range namespaces {
			put(namespace, "web")
		}
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.DiscardHandler), nil) }()
		then(t, r, put)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// without returns how many Services of a namespace have no address.
func (r *failing) without(t *testing.T, namespace string) (n int) {
	t.Helper()
	list, _, err := r.List(t.Context(), api.Service)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		if svc := o.(*corev1.Service); svc.Namespace == namespace && svc.Spec.ClusterIP == "" {
			n++
		}
	}
	return n
}

// However many namespaces there are whose writes hang, or are answered with an error of the registry, they are tried
// ever more rarely, and all that another one waits for is a few of their calls.
func TestNobodyWaitsForWhoIsNotAnswered(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		bad := make([]string, 10)
		for i := range bad {
			bad[i] = fmt.Sprintf("bad%d", i)
		}
		withFailing(t, hangs, bad, func(t *testing.T, r *failing, put func(namespace, name string)) {
			time.Sleep(time.Hour)
			if tried, most := r.failures(), len(bad)*int(time.Hour/lastApart+10); tried < len(bad) || tried > most {
				t.Errorf("hangs: %v: in an hour they are tried %d times, and not up to %d times", hangs, tried, most)
			}
			before := r.failures()
			for i := range 20 {
				put("shop", fmt.Sprintf("s%d", i))
			}
			for left := 20; left > 0; left = r.without(t, "shop") {
				time.Sleep(10 * time.Millisecond)
			}
			if tried := r.failures() - before; tried > 3 {
				t.Errorf("hangs: %v: another namespace waits for %d of their calls", hangs, tried)
			}
		})
	}
}

// A registry that is away is tried ever more rarely, and once it is back nobody waits for longer than that.
func TestARegistryThatIsAwayIsLeftAlone(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		for _, namespaces := range [][]string{{"shop"}, {"a", "b", "c", "d", "e", "f"}} {
			withFailing(t, hangs, nil, func(t *testing.T, r *failing, put func(namespace, name string)) {
				time.Sleep(time.Minute)
				set := func(away bool) {
					r.mu.Lock()
					defer r.mu.Unlock()
					r.away = away
				}
				set(true)
				for _, namespace := range namespaces {
					put(namespace, "web")
				}
				time.Sleep(time.Hour)
				// Each time it is asked for what is to be done, and for what is nobody's in particular.
				if tried, most := r.failures(), 2*int(time.Hour/backoff.Last+10); tried < 100 || tried > most {
					t.Errorf("hangs: %v: for %v it is tried %d times in an hour, and not up to %d times", hangs, namespaces, tried, most)
				}
				set(false)
				time.Sleep(2*callTimeout + backoff.Last + time.Second)
				for _, namespace := range namespaces {
					if r.without(t, namespace) > 0 {
						t.Errorf("hangs: %v: a Service of %s has no address when it is back", hangs, namespace)
					}
				}
			})
		}
	}
}

// slow is a registry that notes of which namespace the Services are for which it writes. Each write takes a while.
type slow struct {
	registry.Registry
	mu     sync.Mutex
	writes map[string]int
}

func (r *slow) wrote(o registry.Object) {
	time.Sleep(50 * time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes[o.GetNamespace()]++
}

func (r *slow) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	r.wrote(o)
	return r.Registry.Create(ctx, k, o, opts...)
}

func (r *slow) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	r.wrote(o)
	return r.Registry.Update(ctx, k, o, opts...)
}

// One write has very many conditions of a namespace be others, and all of these Services get addresses besides. A Service of
// another namespace, which comes last in every order, gets what it is to get, and says what is wrong with it, long
// before all of that is done.
func TestNobodyWaitsForAnothersServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := memory.New()
		r := &slow{Registry: m, writes: make(map[string]int)}
		put := func(k *registry.Kind, o registry.Object) {
			if _, err := m.Create(ctx, k, o); err != nil {
				t.Fatal(err)
			}
		}
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/16"}}}
		config.Name = api.DefaultName
		put(api.ClusterConfigKind, config)
		const many = 100
		contested := func(namespace, name string, age int) *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(began.Add(-time.Duration(age) * time.Hour))},
				Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"203.0.113.9"}}}
		}
		for _, namespace := range []string{"evil", "shop"} {
			put(api.Pod, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Labels: map[string]string{"app": "web"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.2"}})
		}
		for i := range many {
			put(api.Service, contested("evil", fmt.Sprintf("s%03d", i), 1+many-i))
		}
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.DiscardHandler), nil) }()
		defer func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		done := func() int {
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.writes["evil"] // Grants are of no namespace
		}
		all := 0
		for last := -1; last != all; time.Sleep(time.Minute) {
			last, all = all, done()
		}
		// The first of them has the address no more.
		if _, err := registry.Modify(ctx, m, api.Service, registry.Key{Namespace: "evil", Name: "s000"}, func(svc *corev1.Service) error {
			svc.Spec.ExternalIPs = nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i := range many {
			put(api.Service, contested("evil", fmt.Sprintf("t%03d", i), 0))
		}
		time.Sleep(3 * time.Second)
		put(api.Service, contested("shop", "web", 0))
		before := done()
		for {
			time.Sleep(50 * time.Millisecond)
			o, err := m.Get(ctx, api.Service, registry.Key{Namespace: "shop", Name: "web"})
			if err != nil {
				t.Fatal(err)
			}
			svc := o.(*corev1.Service)
			list, _, err := m.List(ctx, api.EndpointSlice)
			if err != nil {
				t.Fatal(err)
			}
			slices := 0
			for _, s := range list {
				if s.GetNamespace() == "shop" {
					slices++
				}
			}
			if svc.Spec.ClusterIP != "" && slices > 0 && meta.IsStatusConditionFalse(svc.Status.Conditions, Served) {
				break
			}
		}
		waited := done() - before
		for last := -1; last != all; time.Sleep(time.Minute) {
			last, all = all, done()
		}
		if total := all - before; total < 3*many || waited > total/4 {
			t.Errorf("before it has all, %d of %d writes are for the other namespace", waited, total)
		}
	})
}

// shop is a namespace in which the controller works, by writes that take a while.
type shop struct {
	*testing.T
	*slow
	pods int
}

// inAShop has the controller run where there is a shop, until it is done.
func inAShop(t *testing.T, then func(s *shop)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &shop{T: t, slow: &slow{Registry: memory.New(), writes: make(map[string]int)}}
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/16"}}}
		config.Name = api.DefaultName
		s.put(api.ClusterConfigKind, config)
		ended := make(chan error)
		go func() { ended <- Run(ctx, s.slow, slog.New(slog.DiscardHandler), nil) }()
		defer func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		then(s)
	})
}

func (s *shop) put(k *registry.Kind, o registry.Object) {
	s.Helper()
	if _, err := s.Registry.Create(s.Context(), k, o); err != nil {
		s.Fatal(err)
	}
}

// service puts a Service, and pods that it selects.
func (s *shop) service(name string, pods ...string) {
	s.Helper()
	labels := map[string]string{"app": name}
	for _, pod := range pods {
		s.pods++
		s.put(api.Pod, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: pod, Labels: labels},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.%d.%d", s.pods/250, s.pods%250+1)}})
	}
	s.put(api.Service, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}})
}

// endpoints returns how many there are of a Service.
func (s *shop) endpoints(name string) (n int) {
	s.Helper()
	list, _, err := s.List(s.Context(), api.EndpointSlice)
	if err != nil {
		s.Fatal(err)
	}
	for _, o := range list {
		if slice := o.(*discoveryv1.EndpointSlice); slice.Labels[discoveryv1.LabelServiceName] == name {
			n += len(slice.Endpoints)
		}
	}
	return n
}

// written returns how many writes there were.
func (s *shop) written() (n int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, writes := range s.writes {
		n += writes
	}
	return n
}

// Very many Services come, and pods of other Services of the namespace go: nodes are told of that before most of
// the Services have what they are to have.
func TestWhatIsGoneWaitsForFewNewServices(t *testing.T) {
	inAShop(t, func(s *shop) {
		s.service("one", "one-1")
		s.service("two", "two-1", "two-2")
		time.Sleep(time.Minute)
		if s.endpoints("one") != 1 || s.endpoints("two") != 2 {
			t.Fatal("at first they do not have their endpoints")
		}
		began := s.written()
		const many = 100
		for i := range many {
			s.service(fmt.Sprint("new", i), fmt.Sprint("new", i))
		}
		time.Sleep(3 * time.Second)
		before := s.written()
		for _, pod := range []string{"one-1", "two-2"} {
			if err := s.Delete(t.Context(), api.Pod, registry.Key{Namespace: "shop", Name: pod}, ""); err != nil {
				t.Fatal(err)
			}
		}
		for s.endpoints("one") != 0 || s.endpoints("two") != 1 {
			time.Sleep(50 * time.Millisecond)
		}
		waited := s.written() - before
		time.Sleep(5 * time.Minute)
		if all := s.written() - began; all < 4*many || waited > 30 {
			t.Errorf("they are gone behind %d of %d writes", waited, all)
		}
	})
}

// Pods change faster than nodes can be told: a Service that comes gets all that it is to get.
func TestNewServicesDoNotWaitForEverForPodsThatChange(t *testing.T) {
	inAShop(t, func(s *shop) {
		const many = 40
		for i := range many {
			s.service(fmt.Sprint("restless", i), fmt.Sprint("restless", i))
		}
		time.Sleep(time.Minute)
		s.service("web", "web")
		for second := 0; ; second++ {
			svc, err := s.Get(t.Context(), api.Service, registry.Key{Namespace: "shop", Name: "web"})
			if err != nil {
				t.Fatal(err)
			}
			if svc.(*corev1.Service).Spec.ClusterIP != "" && s.endpoints("web") == 1 {
				break
			}
			if second == 20 {
				t.Fatal("it does not have all in 20 seconds")
			}
			for i := range many {
				if _, err := registry.Modify(t.Context(), s.Registry, api.Pod, registry.Key{Namespace: "shop", Name: fmt.Sprint("restless", i)}, func(p *corev1.Pod) error {
					p.Spec.NodeName = fmt.Sprint("node", second)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
	})
}
