package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// call is a request that was found to be in order.
type call struct {
	id      string
	command string
	version string
	key     ipam.Key
	netns   string
	// configuration is the name of the CNI configuration, network that of the
	// plan's network in which the interface is to be.
	configuration, network string
	// namespace, pod and uid are the pod's; all may be empty.
	namespace, pod, uid string
	// prevResult is what CHECK compares with; nil where none was given.
	prevResult *types100.Result
	// ports are the ports of the node that are to lead to the pod, and bandwidth is what its
	// interface is limited to, for ADD.
	ports     []ipam.Port
	bandwidth *ipam.Bandwidth
	// valid is GC's list of attachments to keep.
	valid map[ipam.Key]bool
}

// config is the part of a CNI network configuration that concerns Weft. What
// it does not name, runtimes put there for others, and is left alone.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	// Network is the network that pods' interfaces are in; plan.DefaultNetwork by
	// default. Each has an address space of its own.
	Network    string          `json:"network"`
	IPAM       json.RawMessage `json:"ipam"`
	PrevResult json.RawMessage `json:"prevResult"`
	Valid      json.RawMessage `json:"cni.dev/valid-attachments"`
	// Attachments is what libcni also calls Valid, after a misprint in the
	// specification.
	Attachments json.RawMessage `json:"cni.dev/attachments"`
	// Capabilities are what the configuration has a runtime pass in Runtime.
	Capabilities map[string]bool `json:"capabilities"`
	// Runtime is what a runtime passes by capability.
	Runtime struct {
		PortMappings json.RawMessage `json:"portMappings"`
		Bandwidth    json.RawMessage `json:"bandwidth"`
	} `json:"runtimeConfig"`
}

// maxContainerID is the longest container ID taken, in bytes. The
// specification has no bound; runtimes use 64.
const maxContainerID = 128

// maxNetwork is the longest name of a network taken, in bytes: so much room the
// longest container ID and addresses leave in the alias of an interface, which must
// say in which network they are.
const maxNetwork = 54

// maxPath is the longest path Linux takes, in bytes (PATH_MAX - 1).
const maxPath = 4095

// since says in which version of the specification a command appeared.
var since = map[string]string{
	protocol.Add: "0.3.1", protocol.Del: "0.3.1", protocol.Check: "0.4.0", protocol.GC: "1.1.0", protocol.Status: "1.1.0",
}

var (
	// identifier is what the specification allows in container IDs and
	// network names.
	identifier = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)
	// objectName is what Kubernetes allows in names of pods (RFC 1123).
	objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	uidForm    = regexp.MustCompile(`^[a-zA-Z0-9\-]{1,64}$`)
)

// decode reads a request and says what is wrong with it. It is pure.
func decode(r *protocol.Request) (*call, *protocol.Error) {
	first, known := since[r.Command]
	if !known {
		return nil, protocol.Errorf(protocol.InvalidEnvironment, "CNI_COMMAND %q is none of ADD, DEL, CHECK, GC, STATUS and VERSION", r.Command)
	}
	if r.ID == "" {
		return nil, protocol.Errorf(protocol.ProtocolFailure, "the request has no ID")
	}
	var conf config
	if err := json.Unmarshal(r.Stdin, &conf); err != nil {
		return nil, protocol.Undecodable(err)
	}
	if !slices.Contains(protocol.Versions, conf.CNIVersion) {
		return nil, protocol.Errorf(protocol.IncompatibleVersion, "cniVersion %q is none of %s", conf.CNIVersion, strings.Join(protocol.Versions, ", "))
	}
	if older, err := cniversion.GreaterThan(first, conf.CNIVersion); err != nil || older {
		return nil, protocol.Errorf(protocol.IncompatibleVersion, "cniVersion %s has no %s, which came with %s", conf.CNIVersion, r.Command, first)
	}
	c := &call{id: r.ID, command: r.Command, version: conf.CNIVersion, configuration: conf.Name, network: cmp.Or(conf.Network, plan.DefaultNetwork)}
	for _, step := range []func(*protocol.Request, *config) *protocol.Error{c.readNetwork, c.readAttachment, c.readPod, c.readPorts, c.readBandwidth, c.readPrevious, c.readValid} {
		if err := step(r, &conf); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *call) readNetwork(_ *protocol.Request, conf *config) *protocol.Error {
	if !identifier.MatchString(conf.Name) {
		return protocol.Errorf(protocol.InvalidConfig, "the name %q does not begin with a letter or digit or has others than letters, digits, '_', '.' and '-'", conf.Name)
	}
	if given(conf.IPAM) && string(conf.IPAM) != "{}" {
		return protocol.Errorf(protocol.UnsupportedField, "ipam: %s: Weft gives addresses itself; remove the key", shorten(conf.IPAM))
	}
	switch {
	case c.command == protocol.Del || c.command == protocol.GC:
		// What was made is removed, whatever is said of it now.
	case !identifier.MatchString(c.network):
		return protocol.Errorf(protocol.InvalidConfig, "network: the name %q does not begin with a letter or digit or has others than letters, digits, '_', '.' and '-'", clip(c.network))
	case len(c.network) > maxNetwork:
		return protocol.Errorf(protocol.InvalidConfig, "network: the name has %d characters; at most %d are taken", len(c.network), maxNetwork)
	}
	return nil
}

func (c *call) readAttachment(r *protocol.Request, _ *config) *protocol.Error {
	if c.command == protocol.GC || c.command == protocol.Status {
		return nil
	}
	bad := func(format string, args ...any) *protocol.Error {
		return protocol.Errorf(protocol.InvalidEnvironment, format, args...)
	}
	if !identifier.MatchString(r.ContainerID) {
		return bad("CNI_CONTAINERID %q does not begin with a letter or digit or has others than letters, digits, '_', '.' and '-'", clip(r.ContainerID))
	}
	if len(r.ContainerID) > maxContainerID {
		return bad("CNI_CONTAINERID has %d characters; at most %d are taken", len(r.ContainerID), maxContainerID)
	}
	if why := badIfName(r.IfName); why != "" {
		return bad("CNI_IFNAME %q %s", clip(r.IfName), why)
	}
	c.key = ipam.Key{ContainerID: r.ContainerID, IfName: r.IfName}
	c.netns = r.NetNS
	if c.command == protocol.Del {
		// The namespace may be gone, and is not needed.
		return nil
	}
	switch {
	case r.NetNS == "":
		return bad("CNI_NETNS is empty; %s needs the path of the container's network namespace", c.command)
	case !filepath.IsAbs(r.NetNS) || len(r.NetNS) > maxPath || strings.ContainsRune(r.NetNS, 0):
		return bad("CNI_NETNS %q is not an absolute path", clip(r.NetNS))
	}
	return nil
}

// badIfName says why Linux would not take a name for an interface, or "".
func badIfName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > 15:
		return "has more than 15 characters"
	case name == "." || name == "..":
		return "is not a name"
	}
	// The kernel takes a percent sign for a pattern to be numbered.
	bad := func(r rune) bool {
		return strings.ContainsRune("/:%", r) || !unicode.IsGraphic(r) || unicode.IsSpace(r)
	}
	if strings.ContainsFunc(name, bad) || !isASCII(name) {
		return "has a character that is not allowed in an interface's name"
	}
	return ""
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

func (c *call) readPod(r *protocol.Request, _ *config) *protocol.Error {
	if c.command == protocol.GC || c.command == protocol.Status || r.Args == "" {
		return nil
	}
	for pair := range strings.SplitSeq(strings.TrimSuffix(r.Args, ";"), ";") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return protocol.Errorf(protocol.InvalidEnvironment, "CNI_ARGS has %q, which is not of the form KEY=VALUE", clip(pair))
		}
		field, form := (*string)(nil), objectName
		switch key {
		case "K8S_POD_NAMESPACE":
			field = &c.namespace
		case "K8S_POD_NAME":
			field = &c.pod
		case "K8S_POD_UID":
			field, form = &c.uid, uidForm
		default:
			continue
		}
		if value != "" && !form.MatchString(value) {
			return protocol.Errorf(protocol.InvalidEnvironment, "CNI_ARGS has %s=%q, which is no such name in Kubernetes", key, clip(value))
		}
		*field = value
	}
	if (c.namespace == "") != (c.pod == "") {
		return protocol.Errorf(protocol.InvalidEnvironment, "CNI_ARGS has only one of K8S_POD_NAMESPACE and K8S_POD_NAME")
	}
	return nil
}

// readPorts reads the ports of the node that are to lead to the container.
func (c *call) readPorts(_ *protocol.Request, conf *config) *protocol.Error {
	list := conf.Runtime.PortMappings
	if !conf.Capabilities[portMappings] && !given(list) {
		return nil // not known: a configuration of before leaves that to another plug-in
	}
	c.ports = []ipam.Port{}
	if c.command != protocol.Add || !given(list) {
		return nil
	}
	var all []struct {
		HostPort, ContainerPort int64
		Protocol, HostIP        string
	}
	if err := json.Unmarshal(list, &all); err != nil {
		return protocol.Errorf(protocol.DecodingFailure, "runtimeConfig.portMappings: %v", err)
	}
	if len(all) > plugin.MaxPorts {
		return protocol.Errorf(protocol.InvalidConfig, "runtimeConfig.portMappings: %d ports for one pod, more than %d: let it use the node's own network instead", len(all), plugin.MaxPorts)
	}
	there := make(map[ipam.Port]bool)
	for i, one := range all {
		invalid := func(format string, args ...any) *protocol.Error {
			return protocol.Errorf(protocol.InvalidConfig, "runtimeConfig.portMappings[%d]."+format, append([]any{i}, args...)...)
		}
		if one.HostPort == 0 {
			continue // a port that the container listens at, and the node does not
		}
		p := ipam.Port{Protocol: plan.TCP, Node: uint16(one.HostPort), Container: uint16(one.ContainerPort)}
		var err error
		if one.Protocol != "" {
			p.Protocol, err = plan.ParseProtocol(strings.ToLower(one.Protocol))
		}
		switch {
		case one.HostPort < 0 || one.HostPort > maxPort:
			return invalid("hostPort: %d is no port: they are 1 to %d", one.HostPort, maxPort)
		case one.ContainerPort < 1 || one.ContainerPort > maxPort:
			return invalid("containerPort: %d is no port: they are 1 to %d", one.ContainerPort, maxPort)
		case err != nil || !p.Protocol.HasPorts():
			return invalid("protocol: %q has no ports: tcp, udp and sctp have", clip(one.Protocol))
		}
		if p.Address, err = plugin.ParseHostIP(clip(one.HostIP)); err != nil {
			return invalid("hostIP: %v", err)
		}
		if !there[p] {
			there[p] = true
			c.ports = append(c.ports, p)
		}
	}
	if len(c.ports) > 0 && c.network != plan.DefaultNetwork {
		return protocol.Errorf(protocol.InvalidConfig, "runtimeConfig.portMappings: ports of the node lead into its network %s, and not into %s: give the pod no hostPort there", plan.DefaultNetwork, c.network)
	}
	return nil
}

const maxPort = 1<<16 - 1

// readBandwidth reads what the container's interface is limited to. How much may go at once
// after a silence a runtime says as well, and as a rule says as much as a number can be: Weft
// chooses that itself.
func (c *call) readBandwidth(_ *protocol.Request, conf *config) *protocol.Error {
	limits := conf.Runtime.Bandwidth
	if !conf.Capabilities[bandwidth] && !given(limits) {
		return nil // not known, as with ports
	}
	c.bandwidth = &ipam.Bandwidth{}
	if c.command != protocol.Add || !given(limits) {
		return nil
	}
	var asked struct{ IngressRate, EgressRate json.Number }
	if err := json.Unmarshal(limits, &asked); err != nil {
		return protocol.Errorf(protocol.DecodingFailure, "runtimeConfig.bandwidth: %v", err)
	}
	for _, limit := range []struct {
		name string
		rate json.Number
		to   *uint64
	}{{"ingressRate", asked.IngressRate, &c.bandwidth.Ingress}, {"egressRate", asked.EgressRate, &c.bandwidth.Egress}} {
		if limit.rate == "" {
			continue
		}
		rate, err := strconv.ParseUint(limit.rate.String(), 10, 64)
		if err != nil || rate != 0 && (rate < api.MinBandwidth || rate > api.MaxBandwidth) {
			return protocol.Errorf(protocol.InvalidConfig, "runtimeConfig.bandwidth.%s: %q is none: it is a whole number of bits per second from %d to %d, or 0 for no limit",
				limit.name, clip(limit.rate.String()), uint64(api.MinBandwidth), uint64(api.MaxBandwidth))
		}
		*limit.to = rate
	}
	return nil
}

func (c *call) readPrevious(_ *protocol.Request, conf *config) *protocol.Error {
	switch {
	case c.command == protocol.Add && given(conf.PrevResult):
		return protocol.Errorf(protocol.InvalidConfig, "prevResult is given: weft-cni makes the pod's interface and must be the first plug-in of the list")
	case c.command != protocol.Check:
		// DEL must not fail for what it does not need.
		return nil
	case !given(conf.PrevResult):
		return protocol.Errorf(protocol.InvalidConfig, "prevResult is missing; CHECK needs what ADD answered")
	}
	result, err := parseResult(conf.CNIVersion, conf.PrevResult)
	if err != nil {
		return protocol.Errorf(protocol.DecodingFailure, "prevResult: %v", err)
	}
	c.prevResult = result
	return nil
}

func (c *call) readValid(_ *protocol.Request, conf *config) *protocol.Error {
	if c.command != protocol.GC {
		return nil
	}
	list := conf.Valid
	if list == nil {
		list = conf.Attachments
	}
	if list == nil {
		// Taking a missing list for an empty one would cut off every pod.
		return protocol.Errorf(protocol.InvalidConfig, "cni.dev/valid-attachments is missing; an empty list removes all attachments")
	}
	var keys []ipam.Key
	if err := json.Unmarshal(list, &keys); err != nil {
		return protocol.Errorf(protocol.DecodingFailure, "cni.dev/valid-attachments: %v", err)
	}
	c.valid = make(map[ipam.Key]bool, len(keys))
	for i, k := range keys {
		if k.ContainerID == "" || k.IfName == "" {
			return protocol.Errorf(protocol.InvalidConfig, "cni.dev/valid-attachments[%d] has no containerID or no ifname", i)
		}
		c.valid[k] = true
	}
	return nil
}

// given reports whether a key is there with a value.
func given(raw json.RawMessage) bool {
	return len(raw) > 0 && !bytes.Equal(raw, []byte("null"))
}

// clip bounds what of a bad value is repeated in an error.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + fmt.Sprintf("… (%d bytes)", len(s))
}

func shorten(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return clip(string(raw))
	}
	return clip(b.String())
}
