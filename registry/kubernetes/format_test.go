package kubernetes

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// wrap encodes a message as an API server sends it on its own.
func wrap(t testing.TB, m interface{ Marshal() ([]byte, error) }) []byte {
	raw, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Any"}, Raw: raw, ContentType: "x"}
	data, err := u.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.Clone(magic), data...)
}

// frame encodes an event of a watch in protobuf.
func frame(t testing.TB, kind string, object []byte) []byte {
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}
	data, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
}

func pods(names ...string) *corev1.PodList {
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "100", Continue: "more"}}
	for _, n := range names {
		l.Items = append(l.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: n, ResourceVersion: "7"}, Status: corev1.PodStatus{PodIP: "10.244.0.9"}})
	}
	return l
}

func encoded(t testing.TB, f format, o *corev1.PodList) []byte {
	if f == (protobuf{}) {
		return wrap(t, o)
	}
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestFormats(t *testing.T) {
	for k, want := range map[*registry.Kind]format{api.Pod: protobuf{}, api.HostSubnet: asJSON{}, api.ClusterConfigKind: asJSON{}} {
		if got := formatOf(k); got != want {
			t.Errorf("%s travel as %T, want %T", k.Plural, got, want)
		}
	}
}

func TestLists(t *testing.T) {
	for _, f := range []format{protobuf{}, asJSON{}} {
		for _, names := range [][]string{nil, {"a"}, {"a", "longer-than-a", "b"}} {
			var got []string
			meta, err := f.list(bytes.NewReader(encoded(t, f, pods(names...))), func(data []byte) {
				o, err := decode(api.Pod, f, data)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, o.GetName())
				if o.(*corev1.Pod).Status.PodIP == "" || o.GetObjectKind().GroupVersionKind() != api.Pod.GroupVersionKind {
					t.Errorf("%T: %+v", f, o)
				}
			})
			if err != nil || strings.Join(got, " ") != strings.Join(names, " ") || meta.ResourceVersion != "100" || meta.Continue != "more" {
				t.Errorf("%T: list of %q: %q, %+v, %v", f, names, got, meta, err)
			}
		}
		// A connection that breaks does not make a shorter list.
		whole := encoded(t, f, pods("a", "b"))
		for n := range len(whole) - 20 { // the last bytes are the wrapping's
			if _, err := f.list(bytes.NewReader(whole[:n]), func([]byte) {}); err == nil {
				t.Fatalf("%T: the first %d of %d bytes make a list", f, n, len(whole))
			}
		}
	}
}

func TestEvents(t *testing.T) {
	object := wrap(t, &pods("a").Items[0])
	stream := append(frame(t, "ADDED", object), frame(t, "BOOKMARK", object)...)
	next := protobuf{}.events(bytes.NewReader(stream))
	for _, want := range []string{"ADDED", "BOOKMARK"} {
		kind, data, err := next()
		if err != nil || kind != want || keyAt(protobuf{}, data).String() != "ns/a" {
			t.Errorf("event %q of %s, %v", kind, keyAt(protobuf{}, data), err)
		}
	}
	if _, _, err := next(); err != io.EOF {
		t.Errorf("after the last: %v", err)
	}
}

// endless is a reader of a byte that never ends.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

// Nothing that is sent fills the process.
func TestTooLarge(t *testing.T) {
	text := func(start string) io.Reader { return io.MultiReader(strings.NewReader(start), endless('x')) }
	for _, f := range []format{protobuf{}, asJSON{}} {
		if _, err := f.object(endless('x')); !errors.Is(err, errTooLarge) {
			t.Errorf("%T: an endless object: %v", f, err)
		}
	}
	if _, err := (asJSON{}).list(text(`{"items":[{"a":"`), func([]byte) {}); !errors.Is(err, errTooLarge) {
		t.Errorf("an endless item: %v", err)
	}
	if _, _, err := (asJSON{}).events(text(`{"type":"`))(); !errors.Is(err, errTooLarge) {
		t.Errorf("an endless event: %v", err)
	}
	if _, _, err := (protobuf{}).events(endless(0x7f))(); !errors.Is(err, errTooLarge) {
		t.Errorf("an endless frame: %v", err)
	}
	// Raw, of 2^40 bytes; within it an item, of 2^30.
	long := "k8s\x00\x12\x80\x80\x80\x80\x80\x20" + "\x12\x80\x80\x80\x80\x04"
	if _, err := (protobuf{}).list(text(long), func([]byte) {}); !errors.Is(err, errTooLarge) {
		t.Errorf("an endless item: %v", err)
	}
}

func FuzzList(f *testing.F) {
	for _, x := range []format{protobuf{}, asJSON{}} {
		f.Add(encoded(f, x, pods("a", "b")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, x := range []format{protobuf{}, asJSON{}} {
			size := 0
			x.list(bytes.NewReader(data), func(item []byte) {
				size += len(item)
				decode(api.Pod, x, item)
			})
			if size > len(data) {
				t.Errorf("%T: items of %d bytes from %d", x, size, len(data))
			}
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add(frame(f, "ADDED", wrap(f, &pods("a").Items[0])))
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, x := range []format{protobuf{}, asJSON{}} {
			next := x.events(bytes.NewReader(data))
			for {
				_, object, err := next()
				if err != nil {
					break
				}
				decode(api.Pod, x, object)
			}
		}
	})
}
