package flannel

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	types "github.com/containernetworking/cni/pkg/types/100"
)

const (
	podPort = 8080
	// systemPlugins is where Debian puts the CNI plug-ins.
	systemPlugins = "/usr/lib/cni"
)

// pod is a network namespace that a CNI plug-in has networked.
type pod struct {
	*machine
	address netip.Addr
	// address6 is the pod's IPv6 address, if it has one.
	address6 netip.Addr
	remove   func() error
}

// addPod networks a new pod on the machine with the CNI configuration conf.
func (m *machine) addPod(name string, conf *libcni.NetworkConfigList, binDirs ...string) *pod {
	m.t.Helper()
	p := &pod{machine: newMachine(m.t, name)}
	cni := libcni.NewCNIConfigWithCacheDir(binDirs, m.dir+"/cni-cache", nil)
	id := strings.ReplaceAll(m.t.Name(), "/", "-") + "-" + name
	attachment := &libcni.RuntimeConf{ContainerID: id, NetNS: p.path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}}}
	err := m.do(func() error {
		r, err := cni.AddNetworkList(context.Background(), conf, attachment)
		if err != nil {
			return err
		}
		result, err := types.NewResultFromResult(r)
		if err != nil {
			return err
		}
		for _, ip := range result.IPs {
			if a, _ := netip.AddrFromSlice(ip.Address.IP); a.Unmap().Is4() {
				p.address = a.Unmap()
			} else {
				p.address6 = a
			}
		}
		return nil
	})
	if err != nil {
		m.t.Fatalf("%s: CNI ADD of pod %s: %v", m.name, name, err)
	}
	p.remove = func() error {
		return m.do(func() error { return cni.DelNetworkList(context.Background(), conf, attachment) })
	}
	p.serve(podPort)
	return p
}

// echo tells a client its address, and then what it sends.
func echo(c net.Conn) {
	defer c.Close()
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	if _, err := fmt.Fprintln(c, host); err == nil {
		_, _ = io.Copy(c, c) // the client sees what is missing
	}
}

// dial connects to an echo server from the machine, and returns the
// connection and the address that the server sees.
func (m *machine) dial(to netip.Addr, port uint16) (net.Conn, *bufio.Reader, netip.Addr, error) {
	var c net.Conn
	err := m.do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), time.Second)
		return err
	})
	if err != nil {
		return nil, nil, netip.Addr{}, err
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		c.Close()
		return nil, nil, netip.Addr{}, err
	}
	seen, err := netip.ParseAddr(strings.TrimSpace(line))
	return c, r, seen, err
}

// payload is more than fits one packet, so that an MTU that is too large, or
// a checksum that is wrong, shows.
var payload = bytes.Repeat([]byte("0123456789abcdef"), 1<<14)

// exchange sends the payload and expects it back.
func exchange(c net.Conn, r *bufio.Reader) error {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(payload)
		sent <- err
	}()
	got := make([]byte, len(payload))
	if _, err := io.ReadFull(r, got); err != nil {
		c.Close() // ends the writer
		<-sent
		return fmt.Errorf("echo: %w", err)
	}
	if !bytes.Equal(got, payload) {
		return fmt.Errorf("what came back is not what was sent")
	}
	return <-sent
}

// reach is the error of a connection, with as much data as payload in both
// directions, to a server that must see the client as want, if that is valid.
func (m *machine) reach(to netip.Addr, port uint16, want netip.Addr) error {
	c, r, seen, err := m.dial(to, port)
	if err != nil {
		return fmt.Errorf("%s to %s: %w", m.name, to, err)
	}
	defer c.Close()
	if want.IsValid() && seen != want {
		return fmt.Errorf("%s to %s: it is seen as %s instead of %s", m.name, to, seen, want)
	}
	if err := exchange(c, r); err != nil {
		return fmt.Errorf("%s to %s: %w", m.name, to, err)
	}
	return nil
}
