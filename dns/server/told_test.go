package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// logTo returns a log that is written to lines, without times.
func logTo(lines *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// TestFailuresAreTold has many questions fail, again and again: the first ones are logged, each once in a
// while, and of all others how many there were.
func TestFailuresAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		f := &failureLog{log: logTo(&lines)}
		asked := []target{{at: netip.MustParseAddrPort("192.0.2.1:53")}, {at: netip.MustParseAddrPort("[2001:db8::1]:53")}}
		want := func(words ...string) {
			t.Helper()
			f.mu.Lock() // under which lines are written
			all := strings.Split(strings.TrimSuffix(lines.String(), "\n"), "\n")
			lines.Reset()
			f.mu.Unlock()
			if len(all) != len(words) {
				t.Fatalf("there are %d lines, and should be %d:\n%s", len(all), len(words), strings.Join(all, "\n"))
			}
			for i, w := range words {
				if !strings.Contains(all[i], w) {
					t.Errorf("line %d is %s, and should have %s", i, all[i], w)
				}
			}
		}
		f.add(question("WWW.example", dns.TypeAAAA), asked, "no\x1b[2J way\nthere")
		want(`level=INFO msg="a question that others are asked has failed" name=WWW.example. type=AAAA servers="192.0.2.1:53 [2001:db8::1]:53" error="no\\u001b[2J way; there"`)
		f.add(question("www.example", dns.TypeAAAA), asked, "")
		f.add(question("www.example", dns.TypeA), asked, "")
		want("type=A ")
		var first []string
		for n := range 100 {
			f.add(question(fmt.Sprintf("%d.example", n), dns.TypeA), asked, "")
			if n < maxFailuresTold-2 {
				first = append(first, fmt.Sprintf("name=%d.example.", n))
			}
		}
		want(first...)
		time.Sleep(toldTime)
		synctest.Wait()
		want("times=93 ")
		f.add(question("www.example", dns.TypeA), asked, "")
		want("name=www.example.")
		time.Sleep(toldTime)
		synctest.Wait()
		if lines.Len() > 0 {
			t.Errorf("nothing more failed, and it is logged: %s", &lines)
		}
	})
}

// TestFailuresAreLogged has servers help with no name: the log says so, and who they are, whatever others are
// asked meanwhile. That there is no such name is no failure.
func TestFailuresAreLogged(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for name, test := range map[string]struct {
		up   netip.AddrPort
		want string
	}{
		"SERVFAIL": {upstream(t, with(dns.RcodeServerFailure)), "%s answers SERVFAIL"},
		"referral": {upstream(t, refers), "%s says only whom else to ask"},
		"nothing":  {c.LocalAddr().(*net.UDPAddr).AddrPort(), "connection refused"},
		"NXDOMAIN": {upstream(t, denies), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var lines bytes.Buffer
			s := asking(t, test.up, 0)
			s.outside.Load().router.told = &failureLog{log: logTo(&lines)}
			if err := s.take(&ways{rest: []netip.AddrPort{test.up}, stale: 60}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stop(*s.outside.Load().router.to.Load()) })
			s.lookUp(t, "www.example")
			want := strings.ReplaceAll(test.want, "%s", test.up.String())
			got := lines.String()
			if want == "" && got != "" {
				t.Errorf("it is logged: %s", got)
			}
			if want != "" && (!strings.Contains(got, want) || !strings.Contains(got, "name=www.example. type=A servers="+test.up.String()) || strings.Count(got, "\n") != 1) {
				t.Errorf("the log is %q, and should have %q", got, want)
			}
		})
	}
}

// TestFailuresByTCPAreLogged has a server cut what it says by UDP, and say nothing by TCP.
func TestFailuresByTCPAreLogged(t *testing.T) {
	var lines bytes.Buffer
	s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		if r.Truncated = true; w.LocalAddr().Network() == "tcp" {
			r.SetRcode(q, dns.RcodeRefused)
		}
		w.WriteMsg(r)
	}), 0)
	router := s.outside.Load().router
	router.told = &failureLog{log: logTo(&lines)}
	s.outside.Load().ask(s.labels, question("www.example", dns.TypeTXT), netip.AddrPortFrom(pod(1), 1000), true)
	if got := lines.String(); !strings.Contains(got, `name=www.example. type=TXT`) || !strings.Contains(got, `error="by TCP the last one answers REFUSED"`) {
		t.Errorf("the log is %q", got)
	}
}
