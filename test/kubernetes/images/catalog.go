package images

import (
	"path/filepath"

	"github.com/weftnet/weft/internal/oci"
)

// material is what images are made of, apart from Debian's packages.
type material struct {
	bin        string   // directory of the cluster's programs
	kubernetes string   // directory of the sources of Kubernetes
	applets    []string // names that busybox can be called
}

// all describes the images: file name, without an ending, and content.
var all = []func(material) (string, oci.Image, error){pause, coredns, agnhost, busybox, nginx, iptables, kubeProxy, regression}

const (
	e2e = "registry.k8s.io/e2e-test-images/"
	env = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// single returns the layer of one program in the root, which needs nothing.
func (m material) single(program string) oci.Layer {
	return oci.Layer{Files: []oci.File{{Path: "/" + program, Mode: 0o755, Source: filepath.Join(m.bin, program)}}}
}

func pause(m material) (string, oci.Image, error) {
	return "pause", oci.Image{
		Names:  []string{"registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.2"},
		Config: oci.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"},
		Layers: []oci.Layer{m.single("pause")},
	}, nil
}

func coredns(m material) (string, oci.Image, error) {
	return "coredns", oci.Image{
		Names:  []string{"registry.k8s.io/coredns/coredns:v1.14.3"},
		Config: oci.Config{Entrypoint: []string{"/coredns"}, WorkingDir: "/"},
		Layers: []oci.Layer{m.single("coredns")},
	}, nil
}

func agnhost(m material) (string, oci.Image, error) {
	r := newRoot()
	r.busybox(m.applets)
	for name, program := range map[string]string{
		"bash": "bash", "curl": "curl", "dig": "dig", "nslookup": "nslookup", "host": "host", "getent": "getent",
		"iperf": "iperf", "ip": "ip", "ss": "ss", "nc": "nc.openbsd",
	} {
		r.debian("/usr/bin/"+name, program)
	}
	r.link("/usr/bin/sh", "bash")
	r.loadable("libgcc_s.so.1") // the C library, when a thread is ended
	r.text("/etc/nsswitch.conf", "hosts: files dns\n")
	// Users that specs expect in the image.
	r.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"+
		"user-defined-in-image:x:1000:1000::/:/bin/sh\n")
	r.text("/etc/group", "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n"+
		"group-defined-in-image:x:50000:user-defined-in-image\n")
	r.dir("/uploads", 0o777)
	r.program("/agnhost", filepath.Join(m.bin, "agnhost"))
	r.link("/agnhost-2", "agnhost")
	// With these agnhost porter serves TLS.
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		r.files["/"+name] = oci.File{Path: "/" + name, Mode: 0o644, Source: filepath.Join(m.kubernetes, "test/images/agnhost/porter", name)}
	}
	layer, err := r.layer()
	return "agnhost", oci.Image{
		Names:  []string{e2e + "agnhost:2.59", e2e + "jessie-dnsutils:1.7"},
		Config: oci.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{env}, WorkingDir: "/"},
		// The first layer is that of coredns, so a node keeps it once.
		Layers: []oci.Layer{m.single("coredns"), layer},
	}, err
}

func busybox(m material) (string, oci.Image, error) {
	r := newRoot()
	r.busybox(m.applets)
	layer, err := r.layer()
	return "busybox", oci.Image{
		Names:  []string{e2e + "busybox:1.37.0-1"},
		Config: oci.Config{Cmd: []string{"sh"}, Env: []string{env}},
		Layers: []oci.Layer{layer},
	}, err
}

// nginxConf serves a page on port 80 of both families. Logs go where the
// runtime collects them.
const nginxConf = `user nobody nogroup;
worker_processes 1;
error_log stderr notice;
pid /run/nginx.pid;
events {}
http {
	access_log /dev/stdout;
	server {
		listen 80;
		listen [::]:80;
		root /usr/share/nginx/html;
	}
}
`

func nginx(m material) (string, oci.Image, error) {
	r := newRoot()
	r.busybox(m.applets)
	r.program("/usr/sbin/nginx", filepath.Join(m.bin, "nginx"))
	r.text("/etc/nginx/nginx.conf", nginxConf)
	r.text("/usr/share/nginx/html/index.html", "<!DOCTYPE html>\n<title>nginx</title>\n<p>nginx\n")
	r.text("/etc/nsswitch.conf", "hosts: files dns\n")
	r.dir("/var/lib/nginx", 0o755)
	r.dir("/var/log/nginx", 0o755)
	layer, err := r.layer()
	return "nginx", oci.Image{
		Names:  []string{e2e + "nginx:1.14-4", e2e + "nginx:1.15-4"},
		Config: oci.Config{Cmd: []string{"nginx", "-g", "daemon off;"}, Env: []string{env}},
		Layers: []oci.Layer{layer},
	}, err
}

func iptables(m material) (string, oci.Image, error) {
	r := newRoot()
	r.busybox(m.applets)
	r.iptables()
	layer, err := r.layer()
	return "distroless-iptables", oci.Image{
		Names:  []string{"registry.k8s.io/build-image/distroless-iptables:v0.8.9"},
		Config: oci.Config{Env: []string{env}},
		Layers: []oci.Layer{layer},
	}, err
}

// iptables adds what changes rules and connections.
func (r *root) iptables() {
	r.debian("/usr/sbin/conntrack", "conntrack")
	r.debian("/usr/sbin/xtables-nft-multi", "xtables-nft-multi")
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		r.link("/usr/sbin/"+name, "xtables-nft-multi")
	}
	r.loadable("xtables/*.so") // matches and targets
}

// kubeProxy is what clusters run kube-proxy in, whose own image has iptables as well.
func kubeProxy(m material) (string, oci.Image, error) {
	r := newRoot()
	r.program("/usr/local/bin/kube-proxy", filepath.Join(m.bin, "kube-proxy"))
	r.debian("/usr/sbin/nft", "nft")
	r.iptables()
	layer, err := r.layer()
	return "kube-proxy", oci.Image{
		Names:  []string{"registry.k8s.io/kube-proxy:v1.35.4"},
		Config: oci.Config{Env: []string{env}},
		Layers: []oci.Layer{layer},
	}, err
}

func regression(m material) (string, oci.Image, error) {
	return "regression-issue-74839", oci.Image{
		Names:  []string{e2e + "regression-issue-74839:1.4"},
		Config: oci.Config{Entrypoint: []string{"/regression-issue-74839"}},
		Layers: []oci.Layer{m.single("regression-issue-74839")},
	}, nil
}
