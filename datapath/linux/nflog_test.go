package linux

import (
	"encoding/hex"
	"strings"
	"testing"
)

// packets are hexadecimal, with blanks, and what they say; nothing where they
// are no packets.
var packets = []struct{ what, bytes, want string }{
	{"TCP", "45000028 00004000 40060000 0a010102 0a010203 1267 0050 00000000", "10.1.1.2:4711 10.1.2.3:80 tcp"},
	{"TCP after options", "46000028 00004000 40060000 0a010102 0a010203 01010101 1267 0050", "10.1.1.2:4711 10.1.2.3:80 tcp"},
	{"a later fragment", "45000028 00002001 40110000 0a010102 0a010203 1267 0050", "10.1.1.2:0 10.1.2.3:0 udp"},
	{"the first fragment", "45000028 00002000 40110000 0a010102 0a010203 1267 0050", "10.1.1.2:4711 10.1.2.3:80 udp"},
	{"ICMP has no ports", "45000028 00000000 40010000 0a010102 0a010203 0800 0050", "10.1.1.2:0 10.1.2.3:0 icmp"},
	{"cut off in the ports", "45000028 00000000 40060000 0a010102 0a010203 1267", "10.1.1.2:0 10.1.2.3:0 tcp"},
	{"cut off in the options", "4f000028 00000000 40060000 0a010102 0a010203 01", "10.1.1.2:0 10.1.2.3:0 tcp"},
	{"cut off in the header", "45000028 00000000 40060000 0a010102 0a0102", ""},
	{"a header too short to be one", "44000028 00000000 40060000 0a010102 0a010203", ""},
	{"SCTP over IPv6", "60000000 000c 84 40 fd000000000000000000000000000001 fd000000000000000000000000000002 1267 0050", "[fd00::1]:4711 [fd00::2]:80 sctp"},
	{"hop-by-hop and destination options", "60000000 0018 00 40 fd000000000000000000000000000001 fd000000000000000000000000000002" +
		"3c00000000000000 0600000000000000 1267 0050 00000000", "[fd00::1]:4711 [fd00::2]:80 tcp"},
	{"authentication", "60000000 0018 33 40 fd000000000000000000000000000001 fd000000000000000000000000000002" +
		"1101000000000000 00000000 1267 0050 00000000", "[fd00::1]:4711 [fd00::2]:80 udp"},
	{"a later fragment over IPv6", "60000000 0010 2c 40 fd000000000000000000000000000001 fd000000000000000000000000000002" +
		"1100000900000000 1267 0050 00000000", "[fd00::1]:0 [fd00::2]:0 udp"},
	{"an option longer than the packet", "60000000 0018 00 40 fd000000000000000000000000000001 fd000000000000000000000000000002" +
		"06ff000000000000", "[fd00::1]:0 [fd00::2]:0 tcp"},
	{"cut off in the IPv6 header", "60000000 0018 00 40 fd00000000000000000000000000000", ""},
	{"no IP", "00", ""},
	{"nothing", "", ""},
}

func TestParsePacket(t *testing.T) {
	for _, c := range packets {
		h, ok := parsePacket(fromHex(t, c.bytes))
		got := ""
		if ok {
			got = strings.Join([]string{h.source.String(), h.destination.String(), h.protocol.String()}, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q; expected %q", c.what, got, c.want)
		}
	}
}

func fromHex(t testing.TB, text string) []byte {
	text = strings.ReplaceAll(text, " ", "")
	b, err := hex.DecodeString(text[:len(text)&^1])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzParsePacket checks that no packet, and nothing else that the kernel could
// send, is more than can be read.
func FuzzParsePacket(f *testing.F) {
	for _, c := range packets {
		f.Add(fromHex(f, c.bytes))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := parsePacket(b)
		if ok && (!h.source.IsValid() || !h.destination.IsValid() || !h.protocol.HasPorts() && h.source.Port()+h.destination.Port() != 0) {
			t.Errorf("%x is read as %+v", b, h)
		}
		parseLogMessage(b)
	})
}
