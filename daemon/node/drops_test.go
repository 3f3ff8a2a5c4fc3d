package node

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/drops"
)

const (
	aRecord = `{"time":"2026-11-21T12:00:02Z","node":"node1","direction":"ingress","rule":"NetworkPolicy default/web ingress isolation",` +
		`"source":{"address":"10.1.2.9","port":4711},"destination":{"address":"10.1.1.2","pod":"default/web","port":81},"protocol":"tcp"}`
	aReport = `{"counts":[{"rule":"NetworkPolicy default/web ingress isolation","direction":"ingress","packets":12}],"recent":[` + aRecord + `]}`
)

// TestDrops asks an agent that answers as one does, and some that do not.
func TestDrops(t *testing.T) {
	answers := map[string]string{"": aReport, drops.FollowQuery: aRecord + "\n" + aRecord + "\n"}
	status := http.StatusOK
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, agent.HTTPSocketName))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != drops.Path {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		fmt.Fprint(w, answers[r.URL.RawQuery])
	})}
	go server.Serve(l)
	defer server.Close()

	run := func(flags ...string) (string, error) {
		var out strings.Builder
		cmd := New(dataplanes.All())
		cmd.SetArgs(append([]string{"drops", "--run-dir", dir}, flags...))
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, test := range []struct {
		flags string
		want  []string
	}{
		{"", []string{"PACKETS   DIRECTION   REASON\n12        ingress     NetworkPolicy default/web ingress isolation\n", "node1", "10.1.2.9", "default/web"}},
		{"-o json", []string{`"packets": 12`, `"pod": "default/web"`}},
		{"-f", []string{"TIME  ", "  10.1.2.9  "}},
		{"-f -o json", []string{aRecord + "\n" + aRecord + "\n"}},
	} {
		out, err := run(strings.Fields(test.flags)...)
		if err != nil {
			t.Errorf("%q: %v", test.flags, err)
		}
		for _, word := range test.want {
			if !strings.Contains(out, word) {
				t.Errorf("%q lacks %q:\n%s", test.flags, word, out)
			}
		}
	}
	wrong := func(what, want string, flags ...string) {
		t.Helper()
		if out, err := run(flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
	wrong("another format", `-o "yaml": the formats are text and json`, "-o", "yaml")
	answers[""] = aReport[:len(aReport)/2]
	wrong("half an answer", "not whole")
	answers[drops.FollowQuery] = aRecord + aRecord[:20]
	wrong("half a record", "not whole", "-f")
	answers[""], status = "the data plane does not tell\n", http.StatusServiceUnavailable
	wrong("a refusal", "503 Service Unavailable: the data plane does not tell")
	server.Close()
	wrong("no agent", "ask the agent at "+dir)
}
