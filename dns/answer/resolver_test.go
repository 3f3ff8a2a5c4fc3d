package answer_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
)

// TestResolver looks names up with Go's own resolver, whose connections end in a Zone.
func TestResolver(t *testing.T) {
	c := cluster{
		Settings:   records.Settings{Domain: "cluster.local"},
		Namespaces: []string{"shop"},
		Services: []*records.Service{
			{Key: records.Key{Namespace: "shop", Name: "web"}, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")},
				Ports: []records.Port{{Name: "http", Protocol: records.TCP, Port: 80}}},
			{Key: records.Key{Namespace: "shop", Name: "away"}, External: "www.example.com"},
			{Key: records.Key{Namespace: "shop", Name: "inner"}, External: "web.shop.svc.cluster.local"},
			headless(100),
		},
		Clients: []records.Client{{Address: netip.MustParseAddr("10.1.1.2"), Namespace: "shop"}},
		Outside: map[string][]string{"www.example.com.": {"www.example.com. 60 IN A 192.0.2.1"}},
	}
	z := c.zone()
	r := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		stream := network == "tcp"
		go c.serve(t, z, server, answer.Asker{Address: netip.MustParseAddr("10.1.1.2"), Stream: stream})
		if stream {
			return client, nil
		}
		return &datagrams{Conn: client}, nil
	}}
	ctx := t.Context()
	for name, want := range map[string][]string{
		"web.shop.svc.cluster.local.":             {"10.96.0.1", "fd96::1"},
		"db-2.db.shop.svc.cluster.local.":         {"10.0.0.2"},
		"away.shop.svc.cluster.local.":            {"192.0.2.1"},
		"www.example.com.":                        {"192.0.2.1"},
		"www.example.com.shop.svc.cluster.local.": {"192.0.2.1"},
		"WEB.shop.svc.cluster.LOCAL.":             {"10.96.0.1", "fd96::1"},
	} {
		got, err := r.LookupHost(ctx, name)
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	if got, err := r.LookupHost(ctx, "db.shop.svc.cluster.local."); err != nil || len(got) != 100 {
		t.Errorf("of 100 endpoints by TCP there are %d, %v", len(got), err)
	}
	for _, name := range []string{"none.shop.svc.cluster.local.", "none.example.com.", "x.web.shop.svc.cluster.local."} {
		var notFound *net.DNSError
		if got, err := r.LookupHost(ctx, name); !errors.As(err, &notFound) || !notFound.IsNotFound {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	if got, err := r.LookupCNAME(ctx, "inner.shop.svc.cluster.local."); err != nil || got != "web.shop.svc.cluster.local." {
		t.Errorf("inner stands for %s, %v", got, err)
	}
	if got, err := r.LookupTXT(ctx, "dns-version.cluster.local."); err != nil || !slices.Equal(got, []string{"1.1.0"}) {
		t.Errorf("the version is %q, %v", got, err)
	}
	if got, err := r.LookupAddr(ctx, "10.96.0.1"); err != nil || !slices.Equal(got, []string{"web.shop.svc.cluster.local."}) {
		t.Errorf("10.96.0.1 is %v, %v", got, err)
	}
	if got, err := r.LookupAddr(ctx, "10.0.0.3"); err != nil || !slices.Equal(got, []string{"10-0-0-3.db.shop.svc.cluster.local."}) {
		t.Errorf("10.0.0.3 is %v, %v", got, err)
	}
	_, ports, err := r.LookupSRV(ctx, "http", "tcp", "web.shop.svc.cluster.local.")
	if err != nil || len(ports) != 1 || ports[0].Port != 80 || ports[0].Target != "web.shop.svc.cluster.local." {
		t.Errorf("the port http is %v, %v", ports, err)
	}
	if _, ports, err = r.LookupSRV(ctx, "sql", "tcp", "db.shop.svc.cluster.local."); err != nil || len(ports) != 100 {
		t.Errorf("of 100 ports sql there are %d, %v", len(ports), err)
	}
}

// datagrams has a resolver treat a connection as one of UDP.
type datagrams struct{ net.Conn }

func (*datagrams) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, errors.ErrUnsupported }
func (*datagrams) WriteTo([]byte, net.Addr) (int, error)  { return 0, errors.ErrUnsupported }

// serve answers what comes by a connection until it ends.
func (c cluster) serve(t *testing.T, z *answer.Zone, conn net.Conn, from answer.Asker) {
	defer conn.Close()
	for {
		packet := make([]byte, 65535)
		n := 0
		var err error
		if from.Stream {
			var size [2]byte
			if _, err = io.ReadFull(conn, size[:]); err == nil {
				n, err = io.ReadFull(conn, packet[:binary.BigEndian.Uint16(size[:])])
			}
		} else {
			n, err = conn.Read(packet)
		}
		if err != nil {
			return
		}
		query, reply := answer.Read(packet[:n])
		if query != nil {
			var outside *answer.Outside
			if reply, outside = z.Answer(query, from); outside != nil {
				for reply == nil {
					reply = outside.Take(c.outside(t, outside.Question()))
				}
			}
		}
		out, err := reply.Pack()
		if err != nil {
			t.Error(err)
			return
		}
		if from.Stream {
			out = append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}
