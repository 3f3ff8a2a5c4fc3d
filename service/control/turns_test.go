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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// rounds does one round for each text, in which each word is a call for the namespace that is its first letter, and
// "|" says behind how many calls the round is broken off. A call that ends with "!" fails. It returns what is done in which order.
func rounds(texts ...string) (done []string) {
	var t turns
	for _, text := range texts {
		due, most, _ := strings.Cut(text, "|")
		n := -1
		_, _ = fmt.Sscan(most, &n)
		var order []string
		var calls []call
		for _, word := range strings.Fields(due) {
			calls = append(calls, call{Namespace: word[:1], Do: func(context.Context, registry.Registry) error {
				order = append(order, word)
				if strings.HasSuffix(word, "!") {
					return errors.New("it fails")
				}
				return nil
			}})
		}
		for c := range t.each(calls, time.Hour) {
			_ = c.Do(context.Background(), nil)
			if len(order) == n {
				break
			}
		}
		done = append(done, strings.Join(order, " "))
	}
	return done
}

func TestNamespacesTakeTurns(t *testing.T) {
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
		"who does not wait any more is passed over": {[]string{"a1 b1 c1 |1", "c1 a2"}, []string{"a1", "c1 a2"}},
	} {
		if done := rounds(c.rounds...); fmt.Sprint(done) != fmt.Sprint(c.done) {
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
