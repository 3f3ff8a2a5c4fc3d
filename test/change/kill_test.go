package change

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
)

// TestKills kills agents, controllers and etcd at random moments while the plug-in
// changes to and fro and pods come and go. What was sent between pods that were left
// alone is all answered, none of what a policy forbids gets through, and the cluster comes
// to what was asked for last. Seeds go through all pairs of plug-ins in turn, from 1 on.
func TestKills(t *testing.T) {
	pairs := allPairs()
	p := pairs[(*seed-1)%uint64(len(pairs))]
	p.edited = false // what fails, as etcd is away, is asked for again by the command
	t.Logf("seed %d: %s", *seed, p)
	from, to := p.from, p.to
	o := p.options()
	o.Controllers, o.EtcdApart = 2, true
	c := up(t, o)
	old := slices.Concat(c.onEach("a", talker), c.onEach("b", talker))
	c.among(old)
	var strangers []pod
	if p.policies() {
		strangers = c.onEach("stranger", stranger)
		c.reach(strangers, old)
		c.letTalkersIn()
		c.denied(strangers, old)
	}
	p.configure(c)
	always := &traffics{c: c}
	always.load(old, old, baseRate, baseHeld)
	always.knocks(strangers, old)

	going, stop := context.WithCancel(t.Context())
	defer stop()
	var busy sync.WaitGroup
	var last string
	var changes, pods int
	var changing, churning error
	busy.Go(func() { last, changes, changing = c.changeToAndFro(going, to, from) })
	busy.Go(func() { pods, churning = c.churn(going) })
	random := rand.New(rand.NewPCG(*seed, 0))
	killed := make(map[string]int)
	for i := range *kills {
		killed[c.killOne(random, i)]++
	}
	stop()
	busy.Wait()
	t.Logf("killed %v, %d changes asked for, %d pods came and went", killed, changes, pods)
	if err := errors.Join(changing, churning); err != nil {
		t.Fatal(err)
	}
	if changes < 2 || pods == 0 {
		t.Errorf("nothing was tested")
	}
	// The addresses of those that were there all the time keep one in the mix.
	c.status("the cluster comes to "+last, func(s pluginStatus) bool {
		return s.Used == last && (s.State == api.PluginSettled || s.State == api.PluginRetiring)
	})
	fresh := c.onEach("fresh", talker)
	for _, p := range fresh {
		c.isOf(p, last)
	}
	c.among(old, fresh)
	c.weft("plugin", "change", from, "--wait").want(t, 0, "Done")
	c.among(old, fresh)
	c.remove(fresh...)
	c.settled(from)
	c.unchanged()
	always.finishFull()
}

// killOne kills a process at a random moment, starts it again at another, and returns its
// name.
func (c *cluster) killOne(random *rand.Rand, i int) string {
	targets := append(c.lab.Nodes(), "controller1", "controller2", lab.Etcd)
	name := targets[random.IntN(len(targets))]
	time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
	if err := c.lab.Kill(name); err != nil {
		c.Errorf("kill %d, of %s: %v", i, name, err)
	}
	away := time.Duration(random.IntN(200)) * time.Millisecond
	if random.IntN(4) == 0 {
		away *= 10
	}
	time.Sleep(away)
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	if err := c.lab.Start(ctx, name); err != nil {
		c.Errorf("start of %s after kill %d: %v", name, i, err)
	}
	return name
}

// changeToAndFro asks for each of some plug-ins in turn, for all nodes or for one before
// the others, and returns what it asked for last, for all.
func (c *cluster) changeToAndFro(ctx context.Context, plugins ...string) (last string, changes int, err error) {
	random := rand.New(rand.NewPCG(*seed, 1))
	ask := func(args ...string) {
		if err != nil {
			return
		}
		changes++
		err = patiently(func() error {
			if o := c.weft(append([]string{"plugin", "change"}, args...)...); o.code != 0 {
				return fmt.Errorf("weft plugin change %v ends with %d: %s", args, o.code, o.text)
			}
			return nil
		})
	}
	for i := 0; ctx.Err() == nil && err == nil; i++ {
		last = plugins[i%len(plugins)]
		if random.IntN(3) == 0 {
			ask(last, "--node", c.lab.Nodes()[random.IntN(3)])
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
		}
		ask(last)
		time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
	}
	return last, changes, err
}

// churn starts and deletes pods, as a kubelet would, and returns how many came: what
// fails is tried again, under another name for a start and until it works for a
// deletion.
func (c *cluster) churn(ctx context.Context) (started int, err error) {
	random := rand.New(rand.NewPCG(*seed, 2))
	for i := 0; ctx.Err() == nil && err == nil; i++ {
		name := fmt.Sprintf("churn-%d", i)
		if _, failed := c.tryRun(name, 1+random.IntN(3), talker); failed == nil {
			started++
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
		}
		c.forget(name)
		// A killed agent may have kept the lab from undoing all of it.
		err = patiently(func() error {
			if _, missing := c.lab.Addresses("", name); missing != nil {
				return nil
			}
			return c.lab.Delete(c.Context(), "", name)
		})
	}
	return started, err
}

// patiently tries until it works, or has not for long.
func patiently(try func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := try(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
