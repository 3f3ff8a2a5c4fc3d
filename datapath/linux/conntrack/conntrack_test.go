package conntrack

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/plan"
)

// entry is that of a TCP connection from 10.1.1.2:4711 to 10.96.0.1:80, which is a
// Service that 10.1.2.9:8080 serves, with the number 1.
const entry = "\x34\x00\x01\x80" + "\x14\x00\x01\x80\x08\x00\x01\x00\x0a\x01\x01\x02\x08\x00\x02\x00\x0a\x60\x00\x01" +
	"\x1c\x00\x02\x80\x05\x00\x01\x00\x06\x00\x00\x00\x06\x00\x02\x00\x12\x67\x00\x00\x06\x00\x03\x00\x00\x50\x00\x00" +
	"\x34\x00\x02\x80" + "\x14\x00\x01\x80\x08\x00\x01\x00\x0a\x01\x02\x09\x08\x00\x02\x00\x0a\x01\x01\x02" +
	"\x1c\x00\x02\x80\x05\x00\x01\x00\x06\x00\x00\x00\x06\x00\x02\x00\x1f\x90\x00\x00\x06\x00\x03\x00\x12\x67\x00\x00" +
	"\x08\x00\x0c\x00\x00\x00\x00\x01"

func TestParseConnection(t *testing.T) {
	at := netip.MustParseAddrPort
	want := Connection{Protocol: plan.TCP, Source: at("10.1.1.2:4711"), Destination: at("10.1.2.9:8080"), Dialled: at("10.96.0.1:80"), seen: at("10.1.1.2:4711")}
	if c, err := parseConnection([]byte(entry)); err != nil || c != want {
		t.Errorf("it is read as %+v, %v; expected %+v", c, err, want)
	}
	for status, unanswered := range map[string]bool{"\x00\x00\x00\x08": true, "\x00\x00\x00\x0a": false} {
		if c, err := parseConnection([]byte("\x08\x00\x03\x00" + status + entry)); err != nil || c.Unanswered != unanswered {
			t.Errorf("with status %x it is unanswered is %t, %v", status, c.Unanswered, err)
		}
	}
	for state, over := range map[string]bool{"\x01": false, "\x03": false, "\x06": false, "\x07": true, "\x08": true} {
		info := "\x10\x00\x04\x80\x0c\x00\x01\x80\x05\x00\x01\x00" + state + "\x00\x00\x00"
		if c, err := parseConnection([]byte(info + entry)); err != nil || c.Over != over {
			t.Errorf("with TCP's state %x it is over is %t, %v", state, c.Over, err)
		}
	}
	// The kernel finds it by its first direction and its number.
	handle, err := HandleOf([]byte(entry))
	if err != nil || !strings.HasPrefix(entry, string(handle[:52])) || !strings.HasSuffix(entry, string(handle[52:])) || len(handle) != 60 {
		t.Errorf("its handle is %x, %v", handle, err)
	}
}

// FuzzParseConnection checks that nothing that the kernel could send is more than can
// be read.
func FuzzParseConnection(f *testing.F) {
	f.Add([]byte(entry))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseConnection(b)
		_, _ = HandleOf(b)
	})
}
