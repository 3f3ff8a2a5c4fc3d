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
	// Network is the name of the CNI configuration, and Owner the pod; both are
	// only written into the alias.
	Network string
	Owner   Owner
	// HostInterface is the name of the host end, as HostName makes it.
	HostInterface string
	// NetNS is the path of the pod's network namespace.
	NetNS string
	// Addresses are the pod's own, at most one of each family.
	Addresses []netip.Addr
	// Gateways are the pod's next hops by default: an address in the pool for
	// IPv4, LinkLocalGateway for IPv6. None means no default route.
	Gateways []netip.Addr
	// MAC is the address of the pod's end, HostMAC that of the host end; Check
	// does not compare the latter where it is zero.
	MAC, HostMAC plan.MAC
	// MTU of both ends in bytes; 0 leaves it to the kernel.
	MTU int
}

func (s Spec) validate() error {
	if !IsHostName(s.HostInterface) {
		return fmt.Errorf("the host interface's name %q is not %q and %d hexadecimal digits", s.HostInterface, prefix, hashLength)
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
	return nil
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
	// Network is empty where the alias had no room for it.
	Network string
	// Owner is nil where the alias does not say: it had no room, or was written
	// by a version of Weft that did not write owners. Of one that does not fit,
	// the alias has the UID alone.
	Owner *Owner
}

func (s Spec) stamp() Stamp {
	return Stamp{ContainerID: s.ContainerID, Interface: s.Interface, Addresses: s.Addresses, Network: s.Network, Owner: &s.Owner}
}

// String is the alias: "container/interface address,address network owner",
// where the owner is "namespace/pod/uid". What is empty is "-", and what the
// alias has no room for is left out.
func (s Stamp) String() string {
	addrs := make([]string, len(s.Addresses))
	for i, a := range s.Addresses {
		addrs[i] = a.String()
	}
	alias := s.ContainerID + "/" + s.Interface + " " + strings.Join(addrs, ",")
	for _, rest := range s.endings() {
		if len(alias)+len(rest) <= maxAlias {
			return alias + rest
		}
	}
	return alias
}

// endings returns what may follow the addresses, the best first.
func (s Stamp) endings() []string {
	network := cmp.Or(s.Network, none)
	var endings []string
	if s.Owner != nil {
		endings = append(endings, " "+network+" "+s.Owner.String())
		if s.Owner.UID != "" {
			short := " " + Owner{UID: s.Owner.UID}.String()
			endings = append(endings, " "+network+short, " "+none+short)
		}
	}
	if s.Network != "" {
		endings = append(endings, " "+network)
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
	malformed := fmt.Errorf("the alias %q is not of the form CONTAINER/INTERFACE ADDRESS,ADDRESS NETWORK NAMESPACE/POD/UID", alias)
	fields := strings.Split(alias, " ")
	if len(fields) < 2 || len(fields) > 4 {
		return Stamp{}, malformed
	}
	var s Stamp
	var ok bool
	if s.ContainerID, s.Interface, ok = strings.Cut(fields[0], "/"); !ok || s.ContainerID == "" || s.Interface == "" {
		return Stamp{}, malformed
	}
	for text := range strings.SplitSeq(fields[1], ",") {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return Stamp{}, malformed
		}
		s.Addresses = append(s.Addresses, a)
	}
	if len(fields) > 2 && fields[2] != none {
		s.Network = fields[2]
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
