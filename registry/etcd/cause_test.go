package etcd

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCause has errors of connections say what is so, and not what a library did.
func TestCause(t *testing.T) {
	const preface = `connection error: desc = "error reading server preface: `
	for _, c := range []struct {
		message string
		useTLS  bool
		want    string
	}{
		{preface + `read unix @->/run/etcd.sock: use of closed network connection"`, false, "it takes connections and does not answer: its process may hang"},
		{preface + `read tcp 10.0.0.1:1->10.0.0.2:2379: i/o timeout"`, true, "it takes connections and does not answer: its process may hang"},
		{preface + `EOF"`, true, "error reading server preface: EOF; does it want a client certificate, or one of another CA?"},
		{preface + `http2: frame too large"`, false, "error reading server preface: http2: frame too large"},
		{`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`, false,
			"Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"},
	} {
		if got := cause(status.Error(codes.Unavailable, c.message), c.useTLS); got != c.want {
			t.Errorf("of %s it says %q, want %q", c.message, got, c.want)
		}
	}
}
