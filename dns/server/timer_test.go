package server

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// TestStaleTimer has others take a while until they say what is so now: it is given if that comes in time,
// and else what was so before, also that there is no such name.
func TestStaleTimer(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		want  string
	}{
		"in time": {1700 * time.Millisecond, "NOERROR 203.0.113.1"},
		"late":    {1900 * time.Millisecond, "NXDOMAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := false
				cache, err := newCache(3600, plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, q *dns.Msg) (int, error) {
					if !made {
						denies(w, q)
						return dns.RcodeSuccess, nil
					}
					time.Sleep(c.takes)
					says(w, q, "@ 60 IN A 203.0.113.1")
					return dns.RcodeSuccess, nil
				}))
				if err != nil {
					t.Fatal(err)
				}
				want := func(want string) {
					t.Helper()
					w := newRecorder(netip.AddrPortFrom(pod(1), 1000), false)
					cache.ServeDNS(withLabels(), w, question("www.example", dns.TypeA))
					if got := words(w.said); got != want {
						t.Errorf("the answer is %s, and should be %s", got, want)
					}
				}
				want("NXDOMAIN")
				made = true
				time.Sleep(10 * time.Minute)
				want(c.want)
				time.Sleep(time.Second)
				want("NOERROR 203.0.113.1")
			})
		})
	}
}
