package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

func TestReadPorts(t *testing.T) {
	at := func(address string, protocol plan.Protocol, node, container uint16) ipam.Port {
		p := ipam.Port{Protocol: protocol, Node: node, Container: container}
		if address != "" {
			p.Address = netip.MustParseAddr(address)
		}
		return p
	}
	for given, want := range map[string]any{
		``:     []ipam.Port{},
		`null`: []ipam.Port{},
		`[]`:   []ipam.Port{},
		`[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 80, "protocol": "UDP", "hostIP": ""}]`: []ipam.Port{
			at("", plan.TCP, 8080, 80), at("", plan.UDP, 8080, 80)},
		`[{"hostPort": 1, "containerPort": 65535, "protocol": "Sctp", "hostIP": "172.30.0.2"}, {"hostPort": 1, "containerPort": 1, "hostIP": "0.0.0.0"}]`: []ipam.Port{
			at("172.30.0.2", plan.SCTP, 1, 65535), at("0.0.0.0", plan.TCP, 1, 1)},
		`[{"hostPort": 1, "containerPort": 1, "hostIP": "10.0.0.1"}, {"hostPort": 1, "containerPort": 1, "hostIP": "10.0.0.1"}, {"hostPort": 2, "containerPort": 1, "hostIP": "::"}]`: []ipam.Port{
			at("10.0.0.1", plan.TCP, 1, 1), at("::", plan.TCP, 2, 1)},
		`[{"hostPort": 1, "containerPort": 1, "hostIP": "::ffff:10.0.0.1"}]`: "[0].hostIP: \"::ffff:10.0.0.1\" is not how that address is written: write 10.0.0.1",
		`[{"hostPort": 1, "containerPort": 1, "hostIP": "fd00:0::1"}]`:       "write fd00::1",
		`[{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}]`:          []ipam.Port{},
		`[{"hostPort": 65536, "containerPort": 80}]`:                         "[0].hostPort: 65536 is no port",
		`[{"hostPort": 1, "containerPort": 1}, {"hostPort": -1}]`:            "[1].hostPort: -1 is no port",
		`[{"hostPort": 80}]`: "[0].containerPort: 0 is no port",
		`[{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]`:    `[0].protocol: "icmp" has no ports`,
		`[{"hostPort": 80, "containerPort": 80, "protocol": "x"}]`:       `[0].protocol: "x" has no ports`,
		`[{"hostPort": 80, "containerPort": 80, "hostIP": "node1"}]`:     `[0].hostIP: "node1" is no IP address`,
		`[{"hostPort": 80, "containerPort": 80, "hostIP": "fe80::1%x"}]`: `[0].hostIP: "fe80::1%x" is no IP address`,
		`[{"hostPort": "80"}]`: "portMappings: json:",
		`{}`:                   "portMappings: json:",
		"[" + strings.Repeat("{},", plugin.MaxPorts) + "{}]": fmt.Sprintf("%d ports for one pod", plugin.MaxPorts+1),
	} {
		conf := config{Capabilities: map[string]bool{portMappings: true, bandwidth: true}}
		if given != "" {
			conf.Runtime.PortMappings = json.RawMessage(given)
		}
		c := &call{command: protocol.Add, network: plan.DefaultNetwork}
		failure := c.readPorts(nil, &conf)
		if text, fails := want.(string); fails != (failure != nil) || fails && !strings.Contains(fmt.Sprint(failure), text) {
			t.Errorf("%.200s: it fails with %v, and not with %v", given, failure, want)
		} else if !fails {
			if diff := cmp.Diff(want, c.ports, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("%s (-want +got):\n%s", given, diff)
			}
		}
		c.command = protocol.Del
		if failure := c.readPorts(nil, &conf); failure != nil {
			t.Errorf("%.200s: DEL fails: %v", given, failure)
		}
	}
	// A configuration that has no runtime say so leaves it to others.
	unknown := &call{command: protocol.Add, network: plan.DefaultNetwork}
	if failure := errors.Join(asError(unknown.readPorts(nil, &config{})), asError(unknown.readBandwidth(nil, &config{}))); failure != nil || unknown.ports != nil || unknown.bandwidth != nil {
		t.Errorf("what no runtime says is %v and %v: %v", unknown.ports, unknown.bandwidth, failure)
	}
	c, conf := &call{command: protocol.Add, network: "blue"}, config{}
	conf.Runtime.PortMappings = json.RawMessage(`[{"hostPort": 80, "containerPort": 80}]`)
	if failure := c.readPorts(nil, &conf); failure == nil {
		t.Error("an interface in another network gets ports of the node")
	}
}

func asError(e *protocol.Error) error {
	if e == nil {
		return nil
	}
	return e
}

func TestReadBandwidth(t *testing.T) {
	for given, want := range map[string]any{
		``:                                    ipam.Bandwidth{},
		`null`:                                ipam.Bandwidth{},
		`{}`:                                  ipam.Bandwidth{},
		`{"ingressRate": 0, "egressRate": 0}`: ipam.Bandwidth{},
		`{"ingressRate": 10000000, "ingressBurst": 2147483647, "egressRate": 1000, "egressBurst": 4294967295}`: ipam.Bandwidth{Ingress: 10_000_000, Egress: 1000},
		`{"egressRate": 1000000000000000}`:           ipam.Bandwidth{Egress: api.MaxBandwidth},
		`{"ingressRate": 999}`:                       `bandwidth.ingressRate: "999" is none`,
		`{"ingressRate": 5000, "egressRate": -1}`:    `bandwidth.egressRate: "-1" is none`,
		`{"egressRate": 1.5}`:                        `bandwidth.egressRate: "1.5" is none`,
		`{"egressRate": 1000000000000001}`:           `bandwidth.egressRate: "1000000000000001" is none`,
		`{"egressRate": 99999999999999999999999999}`: `bandwidth.egressRate: "9999`,
		`{"egressRate": "fast"}`:                     "bandwidth: json:",
		`[]`:                                         "bandwidth: json:",
	} {
		conf := config{Capabilities: map[string]bool{portMappings: true, bandwidth: true}}
		if given != "" {
			conf.Runtime.Bandwidth = json.RawMessage(given)
		}
		c := &call{command: protocol.Add, network: "blue"}
		failure := c.readBandwidth(nil, &conf)
		if text, fails := want.(string); fails != (failure != nil) || fails && !strings.Contains(fmt.Sprint(failure), text) {
			t.Errorf("%s: it fails with %v, and not with %v", given, failure, want)
		} else if !fails && *c.bandwidth != want {
			t.Errorf("%s: it is %v, and not %v", given, *c.bandwidth, want)
		}
		c.command = protocol.Del
		if failure := c.readBandwidth(nil, &conf); failure != nil {
			t.Errorf("%s: DEL fails: %v", given, failure)
		}
	}
}
