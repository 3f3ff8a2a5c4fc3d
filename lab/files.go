package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Where programs look for who gives names addresses.
const (
	resolvConfFile = "/etc/resolv.conf"
	hostsFile      = "/etc/hosts"
	hostnameFile   = "/etc/hostname"
)

// file is one that a node or a pod sees in place of the machine's.
type file struct {
	Path    string
	Content string
	// IfThere leaves it out where the machine has none.
	IfThere bool
}

// podFiles are the files that a pod sees.
func podFiles(r podRecord, resolvConf string) []file {
	return []file{
		{Path: resolvConfFile, Content: resolvConf},
		{Path: hostsFile, Content: hosts(r.Name, r.Addresses)},
		{Path: hostnameFile, Content: r.Name + "\n", IfThere: true},
	}
}

// podResolvConf is the resolv.conf of a pod in a namespace.
func podResolvConf(servers []netip.Addr, namespace, domain string) string {
	services := "svc." + domain
	return "search " + strings.Join([]string{namespace + "." + services, services, domain}, " ") + "\n" +
		nameServers(servers) + "options ndots:5\n"
}

// nameServers are the lines of a resolv.conf that name servers.
func nameServers(servers []netip.Addr) string {
	var b strings.Builder
	for _, a := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	return b.String()
}

// hosts is the hosts file of a pod.
func hosts(name string, addresses []netip.Addr) string {
	var b strings.Builder
	b.WriteString(`# This pod's alone, made by the lab.
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
fe00::0	ip6-mcastprefix
fe00::1	ip6-allnodes
fe00::2	ip6-allrouters
`)
	for _, a := range addresses {
		fmt.Fprintf(&b, "%s\t%s\n", a, name)
	}
	return b.String()
}

// hasFiles says which of the files the machine lacks that a lab with names has others in
// the place of: nothing is made in the machine's own directories.
func hasFiles() error {
	for _, path := range []string{resolvConfFile, hostsFile} {
		if _, err := os.Lstat(path); err != nil {
			return lacksFile(path, err)
		}
	}
	return nil
}

func lacksFile(path string, err error) error {
	return fmt.Errorf("nodes and pods of a lab with names have their own in place of %s: %w (make an empty one, or do without names with --dns=false)", path, err)
}

// mostLinks bounds how many symbolic links in a row lead to a file.
const mostLinks = 16

// cover has the calling thread's mount namespace, whose /run is nobody else's, see another
// file in place of the machine's.
func cover(f file) error {
	target := f.Path
	for range mostLinks {
		link, err := os.Readlink(target)
		if err != nil {
			break
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(target), link)
		}
		target = link
	}
	if strings.HasPrefix(target, "/run/") {
		// What the link led to is not in this /run.
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, []byte(f.Content), 0o644)
	}
	if _, err := os.Stat(target); err != nil {
		if f.IfThere && errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return lacksFile(f.Path, err)
	}
	// It lies on a file system of its own, which lasts as long as it is mounted. A file that
	// was removed would do, too, but that nothing can be mounted on it: a pod's cover a node's.
	const place = "/run/cover"
	if err := os.Mkdir(place, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return errors.Join(fmt.Errorf("mount %s: %w", place, err), os.Remove(place))
	}
	source := filepath.Join(place, "file")
	err := os.WriteFile(source, []byte(f.Content), 0o644)
	if err == nil {
		if err = unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			err = fmt.Errorf("mount a file on %s: %w", target, err)
		}
	}
	return errors.Join(err, unix.Unmount(place, unix.MNT_DETACH), os.Remove(place))
}
