package compile_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/registry"
)

// What a Compiler and its snapshot keep of a Service is some hundred bytes, and less than a
// hundred for each endpoint: every node keeps all of them.
func TestMemory(t *testing.T) {
	const many = 2000
	for endpoints, most := range map[int]float64{1: 800, 50: 6000} {
		w := world{}
		for i := range many {
			name := fmt.Sprint("s", i)
			w.put(api.Service, serviceOf(name, fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)))
			w.put(api.EndpointSlice, sliceOf(name, 0, endpoints))
		}
		objects := w.snapshot()
		var c compile.Compiler
		var s *compile.Snapshot
		before := held()
		s = c.Compile(objects)
		each := (held() - before) / many
		runtime.KeepAlive(s)
		runtime.KeepAlive(&c)
		runtime.KeepAlive(w)
		t.Logf("a Service with %d endpoints takes %.0f bytes", endpoints, each)
		if each > most {
			t.Errorf("a Service with %d endpoints takes %.0f bytes, more than %.0f", endpoints, each, most)
		}
	}
}

// An endpoint that changes costs its Service, however many others there are.
func TestCompilingCostsWhatChanged(t *testing.T) {
	cost := func(others int) float64 {
		w := world{}
		for i := range others {
			name := fmt.Sprint("s", i)
			w.put(api.Service, serviceOf(name, "10.96.0.1"))
			w.put(api.EndpointSlice, sliceOf(name, 0, 20))
		}
		var c compile.Compiler
		c.Compile(w.snapshot())
		w.put(api.EndpointSlice, sliceOf("s0", 0, 21))
		objects := w.snapshot()
		return allocated(func() { c.Compile(objects) })
	}
	// Of each other a few pointers are looked at.
	if each := (cost(1010) - cost(10)) / 1000; each > 150 {
		t.Errorf("each Service that does not change costs %.0f bytes", each)
	}
}

// A Service has a bounded number of endpoints, however they are written.
func TestTooManyEndpoints(t *testing.T) {
	w := world{}
	w.put(api.Service, serviceOf("web", "None"))
	for i := range 30 {
		w.put(api.EndpointSlice, sliceOf("web", i*1000, i*1000+1000))
	}
	var c compile.Compiler
	s := c.Compile(w.snapshot())
	if n := len(s.Services[0].Endpoints); n != compile.MaxEndpoints {
		t.Errorf("it has %d endpoints", n)
	}
	if p := c.Problems(); len(p) != 1 {
		t.Errorf("of 30000 endpoints it says %v", p)
	}
	for i := range 10 {
		delete(w[api.EndpointSlice], registry.KeyOf(sliceOf("web", i*1000, i*1000)))
	}
	s = c.Compile(w.snapshot())
	if n, p := len(s.Services[0].Endpoints), c.Problems(); n != compile.MaxEndpoints || len(p) > 0 {
		t.Errorf("with 20000 it has %d endpoints, and says %v", n, p)
	}
}

func held() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// allocated returns how many bytes are.
func allocated(by func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	by()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}
