package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/client-go/rest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/kubernetes"
)

// pretend serves HTTP in place of an API server, which cannot be made to
// misbehave so.
func pretend(t *testing.T, serve http.HandlerFunc) (*kubernetes.Registry, string) {
	s := httptest.NewServer(serve)
	t.Cleanup(s.Close)
	r := open(t, kubernetes.Config{REST: &rest.Config{Host: s.URL, QPS: -1}, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { r.Close() })
	return r, s.URL
}

// sentinels are what errors may wrap.
var sentinels = []error{registry.ErrNotFound, registry.ErrExists, registry.ErrConflict, registry.ErrCompacted, registry.ErrUnavailable, registry.ErrInvalid}

// Each file of the archive is an answer of an API server: the call, then the
// status code, the type and the body, and then what the registry says of it.
func TestWhatAnAPIServerSays(t *testing.T) {
	golden.Archives(t, "testdata/answers.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		for i, f := range files {
			given, _, _ := strings.Cut(string(f.Data), "=>\n")
			head, body, _ := strings.Cut(given, "\n")
			fields := strings.Fields(head)
			var code int
			if len(fields) != 3 {
				t.Fatalf("%s: %q: want CALL CODE TYPE", f.Name, head)
			}
			if _, err := fmt.Sscan(fields[1], &code); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			r, server := pretend(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", fields[2])
				w.WriteHeader(code)
				io.WriteString(w, strings.TrimSpace(body))
			})
			files[i].Data = []byte(given + "=>\n" + said(t, call(t, r, fields[0]), server))
		}
		return files
	})
}

// call makes the named call.
func call(t *testing.T, r *kubernetes.Registry, name string) error {
	ctx := t.Context()
	var err error
	switch name {
	case "get":
		_, err = r.Get(ctx, api.HostSubnet, registry.Key{Name: "n1"})
	case "list":
		_, _, err = r.List(ctx, api.HostSubnet)
	case "list-nodes":
		_, _, err = r.List(ctx, api.Node)
	case "create":
		_, err = r.Create(ctx, api.Pod, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}})
	case "delete":
		err = r.Delete(ctx, api.HostSubnet, registry.Key{Name: "n1"}, "7")
	case "watch":
		_, err = r.Watch(ctx, api.HostSubnet, "7")
	case "acquire":
		_, err = r.Acquire(ctx, "controller", "me", time.Minute)
	case "ping":
		err = r.Ping(ctx)
	default:
		t.Fatalf("there is no call %q", name)
	}
	return err
}

// said returns what an error is and says, without what differs between runs.
func said(t *testing.T, err error, server string) string {
	if err == nil {
		t.Fatal("no error")
	}
	kind := "none"
	for _, s := range sentinels {
		if errors.Is(err, s) {
			kind = s.Error()
		}
	}
	return fmt.Sprintf("[%s] %s\n", kind, strings.ReplaceAll(err.Error(), server, "SERVER"))
}

// A server that asks to be left alone for a while is, and then asked again.
func TestRetryAfter(t *testing.T) {
	asked := 0
	r, _ := pretend(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"metadata":{"name":"n1","resourceVersion":"7"},"host":"n1","hostIP":"172.30.0.11","subnet":"10.128.0.0/23"}`)
	})
	if o, err := r.Get(t.Context(), api.HostSubnet, registry.Key{Name: "n1"}); err != nil || o.GetName() != "n1" {
		t.Fatalf("%v, %v", o, err)
	}
	if asked != 2 {
		t.Errorf("the server was asked %d times, want 2", asked)
	}
}

// It is not waited for longer than the caller wants, who then hears why.
func TestRetryAfterTheEnd(t *testing.T) {
	r, _ := pretend(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := r.Get(ctx, api.HostSubnet, registry.Key{Name: "n1"})
	if !errors.Is(err, registry.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "429 Too Many Requests") {
		t.Errorf("%v: want that it is unavailable, and that it said 429", err)
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	r := open(t, kubernetes.Config{REST: &rest.Config{Host: l.Addr().String()}})
	defer r.Close()
	for _, name := range []string{"get", "list", "create", "delete", "watch", "acquire", "ping"} {
		err := call(t, r, name)
		if !errors.Is(err, registry.ErrUnavailable) || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is no answer of an API server is an error, whatever it is.
func TestNonsense(t *testing.T) {
	for _, body := range []string{"", "{", "[]", "null", "nonsense", `{"items":{}}`, `{"items":[`, `{"metadata":{"resourceVersion":7}}`, "k8s\x00", "k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "k8s\x00\x12\x04\x12\x7f"} {
		r, _ := pretend(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
		for _, name := range []string{"list", "list-nodes", "get"} {
			if err := call(t, r, name); err == nil {
				t.Errorf("%s answered by %q: no error", name, body)
			}
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		config kubernetes.Config
		want   string
	}{
		{kubernetes.Config{}, "no API server"},
		{kubernetes.Config{REST: &rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAFile: "none.pem"}}}, "none.pem"},
		{kubernetes.Config{REST: &rest.Config{Host: "%"}}, "%"},
	} {
		if _, err := kubernetes.Open(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: want an error with %q", err, c.want)
		}
	}
}

// answers is an API server that answers a list, and then watches, each by the
// next function.
func answers(t *testing.T, watches ...func(io.Writer, *http.Request)) *kubernetes.Registry {
	left := make(chan func(io.Writer, *http.Request), len(watches))
	for _, w := range watches {
		left <- w
	}
	r, _ := pretend(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if q.FormValue("watch") == "" {
			io.WriteString(w, `{"metadata":{"resourceVersion":"100"},"items":[]}`)
			return
		}
		select {
		case answer := <-left:
			w.(http.Flusher).Flush()
			answer(w, q)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	return r
}

func event(kind, name, version string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"name":%q,"resourceVersion":%q}}}`+"\n", kind, name, version)
}

// A server ends watches after a while. They go on after the last event, or
// after the last bookmark where nothing happened since.
func TestWatchGoesOn(t *testing.T) {
	var after []string
	r := answers(t,
		func(w io.Writer, q *http.Request) {
			after = append(after, q.FormValue("resourceVersion"))
			io.WriteString(w, event("ADDED", "a", "11"))
		},
		func(w io.Writer, q *http.Request) {
			after = append(after, q.FormValue("resourceVersion"))
			io.WriteString(w, event("BOOKMARK", "", "20"))
		},
		func(w io.Writer, q *http.Request) {
			after = append(after, q.FormValue("resourceVersion"))
			io.WriteString(w, event("DELETED", "a", "21"))
		})
	w, err := r.Watch(t.Context(), api.HostSubnet, "10")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for e := range w.Events() {
		got = append(got, fmt.Sprint(e.Type, " ", e.Object.GetName(), " ", e.Revision))
	}
	if fmt.Sprint(got) != "[0 a 11 1 a 21]" || fmt.Sprint(after) != "[10 11 20]" || !errors.Is(w.Err(), registry.ErrUnavailable) {
		t.Errorf("events %v from watches after %v, and then %v", got, after, w.Err())
	}
}

// What ends a watch is said in its stream.
func TestWatchEnds(t *testing.T) {
	for stream, want := range map[string]error{
		`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}}`:                        registry.ErrCompacted,
		`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Gone"}}`:                                                                registry.ErrCompacted,
		`{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError","message":"etcdserver: no leader"}}`:                     registry.ErrUnavailable,
		`{"type":"ERROR","object":{"kind":"Status","code":504,"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}}`: registry.ErrCompacted,
		`{"type":"NEWS","object":{}}`: registry.ErrUnavailable,
		`nonsense`:                    registry.ErrUnavailable,
		``:                            registry.ErrUnavailable, // nothing, and at once
	} {
		r := answers(t, func(w io.Writer, _ *http.Request) { io.WriteString(w, stream) })
		w, err := r.Watch(t.Context(), api.HostSubnet, "10")
		if err != nil {
			t.Fatal(err)
		}
		for e := range w.Events() {
			t.Errorf("%s: event %+v", stream, e)
		}
		if !errors.Is(w.Err(), want) {
			t.Errorf("%s: the watch ended with %v, want %v", stream, w.Err(), want)
		}
	}
}

// An object that does not decode is gone for those who watch.
func TestWatchOfWhatDoesNotDecode(t *testing.T) {
	r := answers(t, func(w io.Writer, _ *http.Request) {
		io.WriteString(w, `{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"11"},"subnet":7}}`)
		io.WriteString(w, event("ADDED", "b", "12"))
	})
	w, err := r.Watch(t.Context(), api.HostSubnet, "10")
	if err != nil {
		t.Fatal(err)
	}
	if e := <-w.Events(); e.Type != registry.Deleted || e.Object.GetName() != "a" || e.Revision != "11" {
		t.Errorf("event %+v", e)
	}
	if e := <-w.Events(); e.Type != registry.Put || e.Object.GetName() != "b" {
		t.Errorf("event %+v", e)
	}
}
