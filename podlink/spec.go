package podlink

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weftnet/weft/plan"
)

// prefix begins the name of every host end.
const prefix = "weft"

// hashLength is the number of hexadecimal characters after prefix; together
// they fill the 15 that Linux allows (IFNAMSIZ).
const hashLength = 11

// maxAlias is the longest interface alias Linux keeps, in bytes (IFALIASZ - 1).
const maxAlias = 255

// LinkLocalGateway is the IPv6 address of every host end, which is the next
// hop of every pod.
var LinkLocalGateway = netip.MustParseAddr("fe80::1")

// HostName returns the name of the host end of a container's interface.
func HostName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return prefix + hex.EncodeToString(sum[:])[:hashLength]
}

// IsHostName reports whether name has the form of HostName's names.
func IsHostName(name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || len(rest) != hashLength {
		return false
	}
	return strings.Trim(rest, "0123456789abcdef") == ""
}

// Spec says what a pod's interface must be.
type Spec struct {
	// ContainerID and Interface name the attachment; Interface is the name
	// of the pod's end.
	ContainerID, Interface string
	// Network is the network that the pod's addresses mean something in,
	// Configuration the name of the CNI configuration, and Owner the pod; all are
	// only written into the alias.
	Network, Configuration string
	Owner                  Owner
	// HostInterface is the name of the host end, as HostName makes it.
	HostInterface string
	// NetNS is the path of the pod's network namespace.
	NetNS string
	// Addresses are the pod's own, at most one of each family.
	Addresses []netip.Addr
	// Gateways are the pod's next hops, at most one of each family: an address in
	// the pool for IPv4, LinkLocalGateway for IPv6.
	Gateways []netip.Addr
	// Destinations are what they lead to, each by the next hop of its family. One
	// of no length is the pod's default route, of which it has one at most.
	Destinations []netip.Prefix
	// MAC is the address of the pod's end, HostMAC that of the host end. Where it is
	// not known the latter is zero: Check does not compare it then, and Restore leaves it.
	MAC, HostMAC plan.MAC
	// MTU of both ends in bytes; 0 leaves it to the kernel.
	MTU int
}

// checkHostName says that the host end cannot have the name that it is to have.
func (s Spec) checkHostName() error {
	if !IsHostName(s.HostInterface) {
		return fmt.Errorf("the host interface's name %q is not %q and %d hexadecimal digits", s.HostInterface, prefix, hashLength)
	}
	return nil
}

func (s Spec) validate() error {
	if err := s.checkHostName(); err != nil {
		return err
	}
	if s.Interface == "" || s.NetNS == "" {
		return errors.New("a pod's interface needs a name and a network namespace")
	}
	if len(s.Addresses) == 0 {
		return errors.New("a pod's interface needs an address")
	}
	if s.MAC.IsZero() {
		return errors.New("a pod's interface needs a MAC address")
	}
	if s.Network == "" {
		return errors.New("a pod's interface needs a network")
	}
	if strings.ContainsAny(s.Network, " "+inNetwork) {
		return fmt.Errorf("the network %q has a space or %q in its name, which an interface's alias cannot hold", s.Network, inNetwork)
	}
	if base := s.stamp().base(); len(base) > maxAlias {
		return fmt.Errorf("the alias %q has %d bytes, of which Linux keeps %d: give the network %q a shorter name", base, len(base), maxAlias, s.Network)
	}
	for _, d := range s.Destinations {
		if _, ok := s.nextHop(d); !ok {
			return fmt.Errorf("no gateway %v leads to %s, which is of another family", s.Gateways, d)
		}
	}
	return nil
}

// nextHop returns the gateway that leads to a destination.
func (s Spec) nextHop(d netip.Prefix) (netip.Addr, bool) {
	for _, gw := range s.Gateways {
		if gw.Is4() == d.Addr().Is4() {
			return gw, true
		}
	}
	return netip.Addr{}, false
}

func (s Spec) hasIPv6() bool {
	for _, a := range s.Addresses {
		if a.Is6() {
			return true
		}
	}
	return false
}

// Owner is the pod that an interface belongs to. The zero value is that of an
// interface whose runtime names no pods.
type Owner struct {
	Namespace, Pod string
	// UID is the one that the runtime knows the pod by; it may be empty.
	UID string
}

// Stamp is what the alias of a host end says: whose it is.
type Stamp struct {
	ContainerID, Interface string
	Addresses              []netip.Addr
	// Network is the one that the addresses mean something in.
	Network string
	// Configuration is empty where the alias had no room for it.
	Configuration string
	// Owner is nil where the alias does not say: it had no room, or was written
	// by a version of Weft that did not write owners. Of one that does not fit,
	// the alias has the UID alone.
	Owner *Owner
}

func (s Spec) stamp() Stamp {
	return Stamp{ContainerID: s.ContainerID, Interface: s.Interface, Addresses: s.Addresses, Network: s.Network, Configuration: s.Configuration, Owner: &s.Owner}
}

// inNetwork comes in an alias between the addresses and the name of their network.
// Addresses of the default network are without.
const inNetwork = "@"

// String is the alias: "container/interface address,address@network configuration
// owner", where the owner is "namespace/pod/uid". What is empty is "-", and of the
// last two what the alias has no room for is left out.
func (s Stamp) String() string {
	alias := s.base()
	for _, rest := range s.endings() {
		if len(alias)+len(rest) <= maxAlias {
			return alias + rest
		}
	}
	return alias
}

// base is what an alias must say.
func (s Stamp) base() string {
	addrs := make([]string, len(s.Addresses))
	for i, a := range s.Addresses {
		addrs[i] = a.String()
	}
	base := s.ContainerID + "/" + s.Interface + " " + strings.Join(addrs, ",")
	if s.Network != plan.DefaultNetwork {
		base += inNetwork + s.Network
	}
	return base
}

// endings returns what may follow that, the best first.
func (s Stamp) endings() []string {
	configuration := cmp.Or(s.Configuration, none)
	var endings []string
	if s.Owner != nil {
		endings = append(endings, " "+configuration+" "+s.Owner.String())
		if s.Owner.UID != "" {
			short := " " + Owner{UID: s.Owner.UID}.String()
			endings = append(endings, " "+configuration+short, " "+none+short)
		}
	}
	if s.Configuration != "" {
		endings = append(endings, " "+configuration)
	}
	return endings
}

// none stands in an alias for what is empty.
const none = "-"

func (o Owner) String() string {
	if o == (Owner{}) {
		return none
	}
	return o.Namespace + "/" + o.Pod + "/" + o.UID
}

// ParseStamp reads an alias.
func ParseStamp(alias string) (Stamp, error) {
	malformed := fmt.Errorf("the alias %q is not of the form CONTAINER/INTERFACE ADDRESS,ADDRESS@NETWORK CONFIGURATION NAMESPACE/POD/UID", alias)
	fields := strings.Split(alias, " ")
	if len(fields) < 2 || len(fields) > 4 {
		return Stamp{}, malformed
	}
	var s Stamp
	var ok bool
	if s.ContainerID, s.Interface, ok = strings.Cut(fields[0], "/"); !ok || s.ContainerID == "" || s.Interface == "" {
		return Stamp{}, malformed
	}
	addresses, network, named := strings.Cut(fields[1], inNetwork)
	if s.Network = plan.DefaultNetwork; named {
		s.Network = network
	}
	if s.Network == "" || strings.Contains(s.Network, inNetwork) || named && s.Network == plan.DefaultNetwork {
		return Stamp{}, malformed
	}
	for text := range strings.SplitSeq(addresses, ",") {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return Stamp{}, malformed
		}
		s.Addresses = append(s.Addresses, a)
	}
	if len(fields) > 2 && fields[2] != none {
		s.Configuration = fields[2]
	}
	if len(fields) > 3 {
		s.Owner = &Owner{}
		if fields[3] != none {
			parts := strings.Split(fields[3], "/")
			if len(parts) != 3 {
				return Stamp{}, malformed
			}
			s.Owner.Namespace, s.Owner.Pod, s.Owner.UID = parts[0], parts[1], parts[2]
		}
	}
	return s, nil
}
