package flannel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// formatSubnetFile returns the content of subnet.env, which tells other
// programs, such as flannel's CNI plug-in, about the node's subnet. That
// masquerading is done says to them that they need not.
func formatSubnetFile(s Settings, subnet Subnet, mtu int) []byte {
	var b bytes.Buffer
	gateway := func(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr().Next(), p.Bits()) }
	if !s.V4.IsZero() && subnet.V4.IsValid() {
		fmt.Fprintf(&b, "FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s\n", s.V4.Network, gateway(subnet.V4))
	}
	if !s.V6.IsZero() && subnet.V6.IsValid() {
		fmt.Fprintf(&b, "FLANNEL_IPV6_NETWORK=%s\nFLANNEL_IPV6_SUBNET=%s\n", s.V6.Network, gateway(subnet.V6))
	}
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n", mtu)
	return b.Bytes()
}

// parseSubnetFile returns the subnet that a subnet.env names. A family that is
// missing or cannot be read is left out: the file is only a hint.
func parseSubnetFile(content []byte) Subnet {
	var s Subnet
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		p, err := netip.ParsePrefix(strings.Trim(strings.TrimSpace(value), `"'`))
		if err != nil || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			continue
		}
		switch strings.TrimSpace(name) {
		case "FLANNEL_SUBNET":
			if p.Addr().Is4() {
				s.V4 = p.Masked()
			}
		case "FLANNEL_IPV6_SUBNET":
			if p.Addr().Is6() {
				s.V6 = p.Masked()
			}
		}
	}
	return s
}

// writeFile replaces a file in one step, if its content is another. It makes
// the directory where there is none.
func writeFile(name string, content []byte) error {
	old, err := os.ReadFile(name)
	if err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(f.Name(), name)
}
