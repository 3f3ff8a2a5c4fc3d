package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/await"
)

// world is what records say, as text of each.
type world map[string]string

func (w world) put(what string, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	w[what] = string(data)
}

func (w world) apply(b Batch) {
	if b.Settings != nil {
		w.put("settings", b.Settings)
	}
	for _, k := range b.Gone {
		delete(w, "service "+k.String())
	}
	for _, s := range b.Put {
		w.put("service "+s.Key.String(), s)
	}
	for _, name := range b.Ended {
		delete(w, "namespace "+name)
	}
	for _, name := range b.Namespaces {
		w.put("namespace "+name, true)
	}
	for _, a := range b.Left {
		delete(w, "client "+a.String())
	}
	for _, c := range b.Clients {
		w.put("client "+c.Address.String(), c)
	}
}

// TestKnown has a follower know what there is only once it has read all of the file, and not after
// the first of several batches, also where there is no file at first, and where it ends broken.
func TestKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	known := func(f *Follower) bool {
		select {
		case <-f.Known():
			return true
		default:
			return false
		}
	}
	var f *Follower
	batches := 0
	f = Follow(path, func(Batch) {
		if batches++; known(f) {
			t.Errorf("all is known with batch %d", batches)
		}
	})
	defer f.close()
	if f.Look(); known(f) {
		t.Error("all is known without a file")
	}
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	settings := &records.Settings{Domain: "cluster.local"}
	must(t, j.Put(settings, nil, []*records.Service{service("web", 1)}, nil, nil))
	must(t, j.Put(settings, nil, []*records.Service{service("db", 2)}, nil, nil))
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer file.Close()
	_, err = file.WriteString("nonsense\n")
	must(t, err)
	if f.Look(); !known(f) || batches != 2 || f.State().Problem == nil {
		t.Errorf("after %d batches all is known: %t, %v", batches, known(f), f.State().Problem)
	}
}

// read returns what a file says to who sees it for the first time.
func read(path string) (world, State) {
	w := world{}
	f := Follow(path, w.apply)
	defer f.close()
	f.Look()
	return w, f.State()
}

func service(name string, last byte) *records.Service {
	return &records.Service{Key: records.Key{Namespace: "default", Name: name}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})},
		Ports: []records.Port{{Name: "http", Protocol: records.TCP, Port: 80}}}
}

func client(last byte, namespace string) records.Client {
	return records.Client{Address: netip.AddrFrom4([4]byte{10, 1, 0, last}), Namespace: namespace}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAnyChanges puts random changes, by agents that start again now and then, and looks that
// who followed all along, and who comes now, know what was put. Then it cuts the file
// anywhere: what is left says what was put last as a whole.
func TestAnyChanges(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, fmt.Sprint(rand.Uint64()))
		defer os.Remove(path)
		followed := world{}
		follower := Follow(path, followed.apply)
		defer follower.close()
		settings := &records.Settings{Domain: "cluster.local"}
		services, clients := map[string]*records.Service{}, map[byte]records.Client{}
		var namespaces []string
		j, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { j.Close() }()
		type moment struct {
			file os.FileInfo
			says world
		}
		var moments []moment
		var changed []*records.Service
		var gone []records.Key
		for range rapid.IntRange(1, 12).Draw(t, "batches") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
				last := rapid.Byte().Draw(t, "last")
				switch rapid.SampledFrom([]string{"put", "remove", "come", "leave", "set", "make", "end"}).Draw(t, "change") {
				case "put":
					services[name] = service(name, last)
					changed = append(changed, services[name])
				case "remove":
					if _, there := services[name]; there {
						delete(services, name)
						gone = append(gone, records.Key{Namespace: "default", Name: name})
						changed = slices.DeleteFunc(changed, func(s *records.Service) bool { return s.Name == name })
					}
				case "come":
					clients[last%8] = client(last%8, name)
				case "leave":
					delete(clients, last%8)
				case "make":
					namespaces = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(namespaces), name))))
				case "end":
					namespaces = slices.DeleteFunc(slices.Clone(namespaces), func(n string) bool { return n == name })
				case "set":
					settings = &records.Settings{Domain: "cluster.local", StaleFor: uint32(last)}
				}
			}
			if rapid.IntRange(0, 5).Draw(t, "start") == 0 {
				j.Close()
				if j, err = Open(path); err != nil {
					t.Fatal(err)
				}
				changed, gone = slices.Collect(maps.Values(services)), nil
			}
			if err := j.Put(settings, namespaces, changed, gone, slices.Collect(maps.Values(clients))); err != nil {
				t.Fatal(err)
			}
			changed, gone = nil, nil
			want := world{}
			want.apply(Batch{Settings: settings, Namespaces: namespaces, Put: slices.Collect(maps.Values(services)), Clients: slices.Collect(maps.Values(clients))})
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(moments) > 0 && !os.SameFile(info, moments[0].file) {
				moments = nil
			}
			moments = append(moments, moment{info, want})
			follower.Look()
			if s := follower.State(); s.Problem != nil || s.Services != len(services) || s.Clients != len(clients) {
				t.Fatalf("it says %+v", s)
			}
			if diff := cmp.Diff(want, followed); diff != "" {
				t.Fatalf("who followed all along (-want +got):\n%s", diff)
			}
			if now, _ := read(path); !maps.Equal(want, now) {
				t.Fatalf("who comes now (-want +got):\n%s", cmp.Diff(want, now))
			}
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cut := path + ".cut"
		defer os.Remove(cut)
		for range 10 {
			at := rapid.IntRange(0, len(data)).Draw(t, "cut")
			if err := os.WriteFile(cut, data[:at], 0o600); err != nil {
				t.Fatal(err)
			}
			got, state := read(cut)
			if state.Problem != nil {
				t.Fatalf("of %d bytes it says: %v", at, state.Problem)
			}
			says := world{}
			for _, m := range moments {
				if m.file.Size() <= int64(at) {
					says = m.says
				}
			}
			if !maps.Equal(says, got) {
				t.Fatalf("of %d bytes (-want +got):\n%s", at, cmp.Diff(says, got))
			}
		}
	})
}

// TestNamespaces: one that comes or goes costs a line of its own, however many others there are,
// and a file does not grow without end by it.
func TestNamespaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	var all []string
	for i := range 2000 {
		all = append(all, fmt.Sprintf("namespace-%05d", i))
	}
	size := func(namespaces []string) int64 {
		t.Helper()
		must(t, j.Put(&records.Settings{Domain: "cluster.local"}, namespaces, nil, nil, nil))
		info, err := os.Stat(path)
		must(t, err)
		if info.Size() != int64(j.size) {
			t.Errorf("the file has %d bytes, and should %d", info.Size(), j.size)
		}
		return info.Size()
	}
	whole := size(all)
	few := size(all[1:])
	if few -= whole; few <= 0 || few > 200 {
		t.Errorf("a namespace that goes takes %d bytes", few)
	}
	if size(all[1:]) != whole+few {
		t.Error("nothing changes, and something is written")
	}
	if again := size(all) - whole - few; again <= 0 || again > 200 {
		t.Errorf("a namespace that comes takes %d bytes", again)
	}
	most := whole
	for i := range 8000 {
		most = max(most, size(all[i%2:]))
	}
	if most > 2*whole+keepGarbage+200 {
		t.Errorf("the file had %d bytes, where one that says all has %d", most, whole)
	}
	got, state := read(path)
	if state.Problem != nil || len(got) != 2000 { // with the settings
		t.Errorf("%d things are there: %v", len(got), state.Problem)
	}
}

// TestNothingChanged puts what is there already, and looks that nothing is written; and the
// same once somebody has taken the file away or changed it, which is then there again.
func TestNothingChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "records")
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	put := func() {
		t.Helper()
		must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", 1)}, []records.Key{{Name: "none"}}, []records.Client{client(1, "default")}))
	}
	put()
	before, err := os.ReadFile(path)
	must(t, err)
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the file is for %v", info.Mode())
	}
	for what, meddle := range map[string]func() error{
		"nobody meddles":   func() error { return nil },
		"it is taken away": func() error { return os.Remove(path) },
		"it is cut":        func() error { return os.Truncate(path, 3) },
		"another is there": func() error { return os.Rename(path, path+".old") },
		"a tail is there":  func() error { return os.WriteFile(path, append(slices.Clone(before), "torn"...), 0o600) },
	} {
		must(t, meddle())
		put()
		if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
			t.Errorf("%s: %v, and the file says\n%s\nbefore it said\n%s", what, err, after, before)
		}
	}
}

// TestGarbage changes one Service again and again, and looks that the file stays short.
func TestGarbage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	last := 0
	for n := range 20_000 {
		last = n
		must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", byte(n))}, nil, nil))
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() > 2*keepGarbage {
		t.Errorf("one Service takes %d bytes", info.Size())
	}
	want := world{}
	want.apply(Batch{Settings: &records.Settings{Domain: "cluster.local"}, Put: []*records.Service{service("web", byte(last))}})
	if got, _ := read(path); !maps.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

// full is a disk that takes no more after some bytes.
type full struct {
	*os.File
	room int
}

func (f *full) Write(b []byte) (int, error) {
	n, err := f.File.Write(b[:min(len(b), f.room)])
	f.room -= n
	return n, errors.Join(err, errors.New("no space left on device"))
}

// TestFullDisk has the disk become full at each byte of a batch. Who follows knows of none of it,
// and of all once there is room.
func TestFullDisk(t *testing.T) {
	for room := range 300 {
		path := filepath.Join(t.TempDir(), "records")
		j, err := Open(path)
		must(t, err)
		must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", 1)}, nil, nil))
		got := world{}
		f := Follow(path, got.apply)
		f.Look()
		before := maps.Clone(got)
		j.file = &full{j.file.(*os.File), room}
		err = j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", 2), service("db", 3)}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Fatalf("with room for %d bytes: %v", room, err)
		}
		f.Look()
		if s := f.State(); s.Problem != nil {
			t.Fatal(s.Problem)
		}
		after := world{}
		after.apply(Batch{Settings: &records.Settings{Domain: "cluster.local"}, Put: []*records.Service{service("web", 2), service("db", 3)}})
		if !maps.Equal(got, before) && (room < 200 || !maps.Equal(got, after)) {
			t.Fatalf("with room for %d bytes it says %v", room, got)
		}
		must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, nil, nil, nil))
		f.Look()
		if !maps.Equal(got, after) {
			t.Fatalf("with room again (-want +got):\n%s", cmp.Diff(after, got))
		}
		f.close()
		j.Close()
	}
}

// TestPortsAreShared reads a Service of many endpoints: those that follow each other and have the
// same ports have them once.
func TestPortsAreShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	s := service("web", 1)
	for i := range 6 {
		s.Endpoints = append(s.Endpoints, records.Endpoint{Address: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}),
			Ports: []records.Port{{Name: "http", Protocol: records.TCP, Port: uint16(80 + i/3)}}})
	}
	must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{s}, nil, nil))
	f := Follow(path, func(b Batch) {
		got := b.Put[0]
		if !got.Equal(s) {
			t.Fatal(cmp.Diff(s, got))
		}
		for i, e := range got.Endpoints {
			if first := got.Endpoints[i/3*3]; &e.Ports[0] != &first.Ports[0] {
				t.Errorf("endpoint %d has ports of its own", i)
			}
		}
	})
	defer f.close()
	f.Look()
	if f.State().Read.IsZero() {
		t.Error("nothing was read")
	}
}

// TestNothingIsLeft has a new file not come to its place: nothing is left of it.
func TestNothingIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	must(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	if err := j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", 1)}, nil, nil); err == nil {
		t.Error("a file is written to where a directory is")
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("beside the directory there are %v, %v", all, err)
	}
}

// TestBroken reads files that make no sense: what was read before holds, and who is told knows
// why; a file that does make sense is read as soon as it is there.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "records")
	got := world{}
	f := Follow(path, got.apply)
	f.Look()
	if s := f.State(); s.Problem == nil || !strings.Contains(s.Problem.Error(), "is the agent running?") || !s.Read.IsZero() {
		t.Errorf("no file: %+v", s)
	}
	j, err := Open(path)
	must(t, err)
	defer j.Close()
	must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", 1)}, nil, nil))
	good, err := os.ReadFile(path)
	must(t, err)
	f.Look()
	before := maps.Clone(got)
	other, _, err := appendLine(nil, 0, line{Version: version + 1})
	must(t, err)
	lines := strings.SplitAfter(string(good), "\n")
	for what, c := range map[string]struct{ data, says string }{
		"words":            {"once upon a time\n", "line 1: it has no sum"},
		"a short line":     {"\n", "line 1: it has no sum"},
		"a sum of letters": {"zzzzzzzz {}\n", `its sum is "zzzzzzzz"`},
		"a byte changed":   {strings.Replace(string(good), "web", "wep", 1), "line 3: its sum is"},
		"a line missing":   {lines[0] + lines[2] + lines[3], "line 2: its sum is"},
		"a line twice":     {lines[0] + lines[1] + lines[1], "line 3: its sum is"},
		"another version":  {string(other), "version 2, and version 1 is known"},
	} {
		must(t, os.WriteFile(path+".new", []byte(c.data), 0o600))
		must(t, os.Rename(path+".new", path))
		for range 2 {
			f.Look()
			if s := f.State(); s.Problem == nil || !strings.Contains(s.Problem.Error(), c.says) || !maps.Equal(got, before) {
				t.Errorf("%s: %v, and it knows\n%v", what, s.Problem, got)
			}
		}
		must(t, os.Remove(path))
		f.Look()
		if s := f.State(); s.Problem == nil || !maps.Equal(got, before) {
			t.Errorf("no file any more: %v, and it knows\n%v", s.Problem, got)
		}
		must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, nil, nil, nil))
		f.Look()
		if s := f.State(); s.Problem != nil || !maps.Equal(got, before) {
			t.Errorf("after %s: %v, and it knows\n%v", what, s.Problem, got)
		}
	}
}

// TestRun follows a file that comes, grows, is renamed over, and whose directory goes and comes
// again.
func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weft")
	path := filepath.Join(dir, "records")
	puts := make(chan string, 100)
	f := Follow(path, func(b Batch) {
		for _, s := range b.Put {
			puts <- s.Name
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- f.Run(t.Context()) }()
	t.Cleanup(func() { <-ended })
	for n := range 20 {
		j, err := Open(path)
		must(t, err)
		for _, what := range []string{"one", "two", "three"} {
			name := fmt.Sprint(what, n)
			must(t, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service(name, 1)}, nil, nil))
			for {
				select {
				case got := <-puts:
					if got != name {
						continue
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s was not heard of: %+v", name, f.State())
				}
				break
			}
		}
		j.Close()
		if n%5 == 4 {
			must(t, os.RemoveAll(dir))
			await.NoError(t, time.Minute, "the file that is gone is told of", func() error {
				if f.State().Problem == nil {
					return errors.New("no problem")
				}
				return nil
			})
		}
	}
}

// FuzzFollower has any bytes read as a file, in two parts.
func FuzzFollower(f *testing.F) {
	path := filepath.Join(f.TempDir(), "records")
	j, err := Open(path)
	must(f, err)
	must(f, j.Put(&records.Settings{Domain: "cluster.local"}, nil, []*records.Service{service("web", 1)}, nil, []records.Client{client(1, "default")}))
	must(f, j.Put(&records.Settings{Domain: "cluster.local"}, nil, nil, []records.Key{{Namespace: "default", Name: "web"}}, nil))
	good, err := os.ReadFile(path)
	must(f, err)
	f.Add(good, 10)
	f.Add([]byte("00000000 {}\n"), 3)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		path := filepath.Join(t.TempDir(), "records")
		at = min(max(at, 0), len(data))
		must(t, os.WriteFile(path, data[:at], 0o600))
		got := world{}
		f := Follow(path, got.apply)
		defer f.close()
		f.Look()
		must(t, os.WriteFile(path, data, 0o600))
		f.Look()
		if now, _ := read(path); len(got) > 0 && f.State().Problem == nil && !maps.Equal(now, got) {
			t.Errorf("in two parts it says\n%v\nand in one\n%v", got, now)
		}
	})
}

// FuzzEvents has any bytes read as what inotify tells.
func FuzzEvents(f *testing.F) {
	f.Add(make([]byte, 48), "records")
	f.Fuzz(func(_ *testing.T, told []byte, name string) { events(told, name) })
}

// FuzzLines has any bytes decoded, all at once and byte by byte: the same batches come, or the
// same line is the first that is wrong.
func FuzzLines(f *testing.F) {
	var good []byte
	var sum uint32
	for _, l := range []line{{Version: version}, {Settings: &records.Settings{Domain: "cluster.local"}}, {Service: service("web", 1)}, {Namespace: new("shop")}, {Ended: new("shop")}, {Commit: true},
		{Gone: &records.Key{Namespace: "default", Name: "web"}}, {Client: new(client(1, "default"))}, {Left: new(netip.MustParseAddr("10.1.0.2"))}, {Commit: true}} {
		var err error
		if good, sum, err = appendLine(good, sum, l); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Fuzz(func(t *testing.T, data []byte) {
		var whole, parts decoder
		one, two := world{}, world{}
		decode := func(d *decoder, w world, data []byte) (rest []byte, err error) {
			for {
				n, b, err := d.next(data)
				if err != nil {
					return data, err
				}
				if n <= 0 {
					t.Fatal("a line has no bytes")
				}
				if b != nil {
					w.apply(*b)
				}
				data = data[n:]
			}
		}
		_, first := decode(&whole, one, data)
		var rest []byte
		second := errTail
		for i := range data {
			if rest, second = decode(&parts, two, append(rest, data[i])); !errors.Is(second, errTail) {
				break
			}
		}
		if errors.Is(first, errTail) != errors.Is(second, errTail) || !maps.Equal(one, two) {
			t.Errorf("all at once: %v, %v\nbyte by byte: %v, %v", first, one, second, two)
		}
	})
}
