package policy

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/test/policy/oracle"
	"github.com/weftnet/weft/test/policy/story"
)

var (
	cases   = flag.Int("cases", 100_000, "how many packets to ask about")
	seed    = flag.Uint64("seed", 1, "seed of the random clusters")
	cluster = flag.Int("cluster", -1, "try this cluster of the seed alone")
)

// packetsEach is how many packets are asked about in each state of a cluster.
const packetsEach = 60

// try takes a random cluster through some changes and compares in each state. It
// returns the first trial that differs, or nil, and what the oracle answered.
func try(seed, cluster uint64, start func() subject) (*trial, tally) {
	g := newGenerator(seed, cluster)
	s := start()
	answers := tally{}
	var t trial
	for i, changes := 0, 1+g.IntN(3); i <= changes; i++ {
		if i == 0 {
			t.states = append(t.states, g.cluster())
		} else {
			t.states = append(t.states, g.mutate(t.states[i-1]))
		}
		c := t.states[i]
		packets := g.packets(c, packetsEach)
		d := become(s, c)
		if d == nil {
			d = compare(s, c, packets, answers)
		} else if len(packets) > 0 {
			d.packet = packets[0]
		}
		if d != nil {
			t.packet = d.packet
			return &t, answers
		}
	}
	return nil, answers
}

// TestOracle asks the compiler and the oracle about the same packets.
func TestOracle(t *testing.T) { search(t, newCompiled, *cases) }

// search tries random clusters until so many packets were asked about. It fails
// the test where the subject does not say what the oracle says.
func search(t *testing.T, start func() subject, cases int) {
	t.Helper()
	if *cluster >= 0 {
		if found, _ := try(*seed, uint64(*cluster), start); found != nil {
			report(t, *found, start)
		}
		return
	}
	begun := time.Now()
	var mu sync.Mutex
	var clusters, asked, failures int
	answers := tally{}
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		clusters++
		return uint64(clusters - 1), asked < cases && failures < mostFailures
	}
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i, ok := next(); ok; i, ok = next() {
				found, said := try(*seed, i, start)
				mu.Lock()
				asked += answers.addAll(said)
				if found != nil {
					failures++
				}
				mu.Unlock()
				if found != nil {
					t.Errorf("cluster %d differs: go test ./test/policy -run '^%s$' -seed %d -cluster %d", i, t.Name(), *seed, i)
					report(t, *found, start)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("seed %d: %d packets in %d clusters, %d of which differ; %.0f packets a second; %v", *seed, asked, clusters, failures,
		float64(asked)/time.Since(begun).Seconds(), answers)
	for _, d := range decisions {
		if !t.Failed() && answers[d] < asked/50 {
			t.Errorf("only %d packets were %s: the clusters say little of such policies", answers[d], d)
		}
	}
}

// mostFailures ends a run in which there is no use to go on.
const mostFailures = 5

// report shrinks what was found, tells its story, and keeps it among those that
// are told again. It fails the test.
func report(t *testing.T, found trial, start func() subject) {
	t.Helper()
	found, d := shrink(found, start)
	if d == nil {
		t.Error("the difference did not show again")
		return
	}
	t.Errorf("%s\n%s", d, found)
	name, err := found.keep(d)
	if err != nil {
		t.Error(err)
		return
	}
	t.Logf("kept as %s", name)
}

// String is the trial's story.
func (t trial) String() string {
	text, err := story.Format(t.story(t.states[len(t.states)-1].Evaluate(t.packet)))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (t trial) story(expected oracle.Answer) *story.Story {
	s := &story.Story{}
	for _, c := range t.states {
		s.States = append(s.States, story.State{Cluster: c})
	}
	if t.packet == (oracle.Packet{}) {
		return s // it fails without one
	}
	s.States[len(s.States)-1].Packets = []story.Expectation{
		{Packet: t.packet, Allowed: expected.Allowed, By: cmp.Or(expected.Ingress, expected.Egress)}}
	return s
}

// found is where stories of differences are.
const found = "testdata/found"

// keep writes the story to where it is told again. Who reads it says in the
// comment what was wrong.
func (t trial) keep(d *difference) (string, error) {
	s := t.story(t.states[len(t.states)-1].Evaluate(t.packet))
	s.Comment = "Say here what was wrong. It was found as:\n\n" + d.String() + "\n"
	text, err := story.Format(s)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(found, 0o755); err != nil {
		return "", err
	}
	for i := 1; ; i++ {
		name := filepath.Join(found, fmt.Sprintf("new-%d.txtar", i))
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = file.Write(text)
		return name, errors.Join(err, file.Close())
	}
}

// TestStories asks the oracle and the compiler about packets whose fate is
// written down: those of testdata/told follow from the text of the definitions,
// and those of testdata/found were once a difference.
func TestStories(t *testing.T) {
	var names []string
	for _, pattern := range []string{"testdata/told/*.txtar", found + "/*.txtar"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, some...)
	}
	if len(names) == 0 {
		t.Fatal("there are no stories")
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s, err := story.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			for _, wrong := range replay(s, newCompiled()) {
				t.Error(wrong)
			}
		})
	}
}

// replay takes a subject through a story, and says what the subject or the
// oracle says otherwise.
func replay(s *story.Story, subject subject) (wrong []string) {
	for _, state := range s.States {
		if d := become(subject, state.Cluster); d != nil {
			return append(wrong, d.why)
		}
		for _, e := range state.Packets {
			says := state.Cluster.Evaluate(e.Packet)
			if says.Allowed != e.Allowed || e.By != "" && e.By != says.Ingress && e.By != says.Egress {
				wrong = append(wrong, fmt.Sprintf("%s\nthe oracle: %s", e.Line, describe(says)))
			}
			if d := compare(subject, state.Cluster, []oracle.Packet{e.Packet}, tally{}); d != nil {
				wrong = append(wrong, d.String())
			}
		}
	}
	return wrong
}
