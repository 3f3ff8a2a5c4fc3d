package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weftnet/weft"

type goPackage struct {
	ImportPath, Name, Doc string
	GoFiles, Imports      []string
	Deps                  []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Name,Doc,GoFiles,Imports,Deps", module+"/...")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []goPackage
	for d := json.NewDecoder(out); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("go list found %d packages only", len(all))
	}
	return all
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + p.ImportPath[strings.LastIndexByte(p.ImportPath, '/')+1:] + " "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: its package comment must begin with %q and say what the package is for; it is %q", p.ImportPath, want, p.Doc)
		}
	}
}

// rule says what the packages at or below a path must not depend on, even
// through others.
type rule struct {
	from string
	not  []string
	why  string
}

var rules = []rule{
	{"plan", []string{"registry", "api", "plugin", "datapath", "agent", "controller", "cni", "lab", "cli", "!std"},
		"the plan is the waist between plug-ins and data planes and knows neither; it stands on the standard library alone"},
	{"registry", []string{"api", "plan", "plugin", "datapath", "agent", "controller", "cni", "lab", "cli"},
		"a registry stores objects and does not know what they are for"},
	{"plugin", []string{"datapath", "agent", "controller", "cni", "lab", "cli", "ext:github.com/vishvananda/netlink", "ext:github.com/google/nftables", "registry/etcd", "ext:go.etcd.io/etcd", "registry/kubernetes", "ext:k8s.io/client-go"},
		"a plug-in compiles objects into plans, and knows neither kernel nor which registry serves it"},
	{"subnet", []string{"registry", "api", "plan", "plugin", "datapath", "agent", "controller", "!std"},
		"allocation is a function of values"},
	{"service", []string{"plugin", "datapath", "agent", "controller", "cni", "lab", "cli", "registry/etcd", "registry/kubernetes", "ext:k8s.io/client-go"},
		"what Services become is a function of objects, whichever plug-in gives pods addresses and whoever loads it"},
	{"dns/records", []string{"api", "registry", "plan", "plugin", "datapath", "service", "agent", "controller", "!std"},
		"what passes from the agent to the name server are values"},
	{"dns/compile", []string{"dns/answer", "plugin", "datapath", "agent", "controller", "cni", "lab", "cli", "registry/etcd", "registry/kubernetes", "ext:k8s.io/client-go", "ext:github.com/miekg/dns"},
		"what names stand for is a function of objects, whoever answers"},
	{"dns/answer", []string{"api", "registry", "plan", "plugin", "datapath", "service", "agent", "controller", "cni", "lab", "cli", "ext:k8s.io"},
		"what is answered depends on records alone, and the name server is a small process"},
	{"dns/journal", []string{"dns/answer", "dns/compile", "dns/keeper", "dns/server", "api", "registry", "plan", "plugin", "datapath", "service", "agent", "controller", "internal", "!sys"},
		"a file of records does not depend on who makes them and who answers by them"},
	{"dns/unanswered", []string{"dns/records", "dns/journal", "dns/answer", "dns/compile", "dns/keeper", "dns/server", "api", "registry", "plan", "plugin", "datapath", "service", "agent", "controller", "cni", "lab", "cli", "daemon", "internal", "!sys"},
		"what was read and is not answered is bytes, whoever reads and answers them"},
	{"dns/keeper", []string{"dns/records", "dns/journal", "dns/answer", "dns/compile", "dns/unanswered", "dns/server", "api", "registry", "plan", "plugin", "datapath", "service", "agent", "controller", "cni", "lab", "cli", "daemon", "internal", "!sys"},
		"who keeps the sockets takes each node's memory for as long as the node lives, and must outlive whatever answers"},
	{"cmd/weft-dns", []string{"dns/records", "dns/journal", "dns/answer", "dns/compile", "dns/unanswered", "dns/server", "daemon", "internal", "!sys"},
		"who keeps the sockets takes each node's memory for as long as the node lives, and must outlive whatever answers"},
	{"dns/server", []string{"dns/compile", "api", "registry", "plan", "plugin", "datapath", "service", "agent", "controller", "cni", "lab", "cli", "daemon", "ext:k8s.io", "ext:go.etcd.io"},
		"the name server answers by records alone, and what it carries takes each node's memory"},
	{"service/counts", []string{"api", "registry", "plan", "service/control", "service/health", "service/pools", "ext:k8s.io"},
		"what nodes have counted is values, whoever counts and whoever asks"},
	{"service/pools", []string{"service/control", "service/health"},
		"who has which address is decided of objects, and not of how it is carried out or what nodes answer"},
	{"announce", []string{"plan", "plugin", "datapath", "agent", "controller", "cni", "lab", "cli", "ext:k8s.io/client-go"},
		"which node answers for an address does not depend on how packets get on from there"},
	{"announce/wire", []string{"registry", "api", "announce/election", "announce/link", "announce/hold", "!std"},
		"what is said on a link is bytes, whoever says it and why"},
	{"announce/election", []string{"registry", "api", "announce/link", "announce/hold", "announce/server", "!std"},
		"nodes elect among themselves without a registry, and it must be tried in every order without a link"},
	{"announce/link", []string{"registry", "api", "announce/election", "announce/hold", "announce/server"},
		"what is sent and heard on a link is decided elsewhere"},
	{"announce/hold", []string{"registry", "api", "announce/election", "announce/link", "announce/server"},
		"what the node has is decided elsewhere"},
	{"internal/derived", []string{"plan", "plugin", "datapath", "agent", "controller"},
		"what changed among objects does not depend on what is made of them"},
	{"datapath", []string{"registry", "api", "plugin", "agent", "controller", "cni", "lab", "cli", "ext:k8s.io/client-go"},
		"a data plane loads plans, whoever compiled them"},
	{"datapath/interval", []string{"datapath/linux", "datapath/conformance", "!std"},
		"what data planes share is a function of what plans say, and knows no kernel"},
	{"datapath/profile", []string{"datapath/linux", "datapath/conformance", "!std"},
		"what data planes share is a function of what plans say, and knows no kernel"},
	{"datapath/judge", []string{"datapath/linux", "datapath/conformance", "!std"},
		"what data planes share is a function of what plans say, and knows no kernel"},
	{"datapath/reconcile", []string{"plan", "datapath", "!std"},
		"what leads from what there is to what is wanted does not depend on what that is"},
	{"datapath/linux/nft", []string{"plan", "datapath/profile", "datapath/judge"},
		"an nftables table is a value, whatever it is for"},
	{"datapath/linux/rtnl", []string{"datapath/linux/nft", "datapath/profile", "datapath/judge", "ext:github.com/google/nftables"},
		"a node's interfaces and routes are one thing, and its packet filter is another"},
	{"datapath/linux/survey", []string{"datapath/profile", "datapath/judge", "datapath/linux/conntrack"},
		"what others have set up is looked at, and nothing is changed"},
	{"datapath/linux/conntrack", []string{"datapath/linux/nft", "datapath/linux/rtnl", "datapath/profile", "datapath/judge", "datapath/reconcile", "ext:github.com/google/nftables"},
		"which connections end is decided elsewhere"},
	{"datapath/linux/message", []string{"plan", "datapath"},
		"what a netlink message says does not depend on who asked"},
	{"trace", []string{"registry", "api", "plugin", "datapath", "agent", "controller", "cni", "lab", "cli", "explain", "ext:k8s.io"},
		"what a kernel does with a packet is seen in the kernel alone"},
	{"ipam", []string{"registry", "api", "datapath", "agent", "controller", "lab", "cli", "ext:github.com/vishvananda/netlink"},
		"giving out addresses is a function of a journal"},
	{"agent", []string{"plugin/openshift", "plugin/flannel", "plugin/plugins", "datapath/linux", "controller", "lab", "cli", "registry/etcd", "registry/kubernetes", "ext:k8s.io/client-go"},
		"the agent picks plug-in, data plane and registry by name, from lists that are handed to it"},
	{"controller", []string{"plugin/openshift", "plugin/flannel", "plugin/plugins", "datapath", "agent", "lab", "cli", "registry/etcd", "registry/kubernetes", "ext:github.com/vishvananda/netlink"},
		"the controller does not touch a node's kernel"},
	{"daemon", []string{"cli", "lab", "registry/etcd/embedded", "ext:go.etcd.io/etcd/server", "ext:k8s.io/client-go/kubernetes", "ext:k8s.io/client-go/dynamic"},
		"what all daemons carry takes each node's memory"},
	{"daemon/control", []string{"agent", "datapath", "cni", "podlink", "daemon/node", "ext:github.com/vishvananda/netlink"},
		"the controller does not touch a node's kernel"},
	{"cmd/weft-agent", []string{"cli", "lab", "controller", "daemon/control", "registry/etcd/embedded", "ext:go.etcd.io/etcd/server", "ext:k8s.io/client-go/kubernetes", "ext:k8s.io/client-go/dynamic", "ext:github.com/containernetworking/cni/libcni"},
		"the agent runs on every node, and what it carries takes each node's memory"},
	{"cmd/weft-controller", []string{"cli", "lab", "agent", "datapath", "cni", "podlink", "daemon/node", "registry/etcd/embedded", "ext:go.etcd.io/etcd/server", "ext:k8s.io/client-go/kubernetes", "ext:k8s.io/client-go/dynamic", "ext:github.com/containernetworking/cni/libcni"},
		"a controller that the cluster runs as a pod carries neither an etcd nor a node's work"},
	{"cmd/weft-cni", []string{"plan", "registry", "api", "plugin", "datapath", "agent", "controller", "lab", "cli", "!std"},
		"the shim hands over a request; it must stay small"},
}

// exempt are packages that stand outside the rule of their folder: test
// support, which may know more than what it tests.
var exempt = []string{"plan/plantest", "registry/registrytest", "datapath/conformance"}

func TestImports(t *testing.T) {
	all := packages(t)
	for _, r := range rules {
		matched := false
		for _, p := range all {
			path, ok := strings.CutPrefix(p.ImportPath, module+"/")
			if !ok || !below(path, r.from) || slices.Contains(exempt, path) {
				continue
			}
			matched = true
			for _, dep := range p.Deps {
				if bad := r.forbids(path, dep); bad {
					t.Errorf("%s depends on %s, but %s", path, dep, r.why)
				}
			}
		}
		if !matched {
			t.Errorf("the rule for %s matches no package", r.from)
		}
	}
}

// An oracle is worth something only as long as it shares nothing with what is held
// against it.
func TestOraclesStandAlone(t *testing.T) {
	oracles := []string{module + "/test/policy/oracle", module + "/test/service/oracle"}
	allowed := []string{"k8s.io/api", "k8s.io/apimachinery", "sigs.k8s.io/network-policy-api/apis"}
	all := packages(t)
	for _, oracle := range oracles {
		at := slices.IndexFunc(all, func(p goPackage) bool { return p.ImportPath == oracle })
		if at < 0 {
			t.Errorf("there is no package %s", oracle)
			continue
		}
		for _, i := range all[at].Imports {
			first, _, _ := strings.Cut(i, "/")
			if strings.Contains(first, ".") && !slices.ContainsFunc(allowed, func(folder string) bool { return below(i, folder) }) {
				t.Errorf("%s imports %s, but it may know nothing but Kubernetes' own types", oracle, i)
			}
		}
	}
}

// CoreDNS is large, and has listeners and registries that are the whole process's.
func TestCoreDNSIsTheNameServers(t *testing.T) {
	carry := []string{"dns/server", "cmd/weft-dns-server"}
	found := 0
	for _, p := range packages(t) {
		if !slices.ContainsFunc(p.Deps, func(dep string) bool { return below(dep, "github.com/coredns") }) {
			continue
		}
		found++
		if path := strings.TrimPrefix(p.ImportPath, module+"/"); !slices.Contains(carry, path) {
			t.Errorf("%s depends on CoreDNS, but only %v may", path, carry)
		}
	}
	if found != len(carry) {
		t.Errorf("%d packages depend on CoreDNS, and %v should", found, carry)
	}
}

// What declares flags of tests must not be in a program.
func TestGoldenFilesAreForTests(t *testing.T) {
	const golden = module + "/internal/golden"
	found := false
	for _, p := range packages(t) {
		found = found || p.ImportPath == golden
		if slices.Contains(p.Imports, golden) {
			t.Errorf("%s imports %s outside of its tests, and so has the flag -update", p.ImportPath, golden)
		}
	}
	if !found {
		t.Errorf("there is no package %s", golden)
	}
}

func (r rule) forbids(from, dep string) bool {
	own, inside := strings.CutPrefix(dep, module+"/")
	for _, n := range r.not {
		switch {
		case n == "!std":
			first, _, _ := strings.Cut(dep, "/")
			if !inside && strings.Contains(first, ".") && first != "vendor" {
				return true
			}
		case n == "!sys":
			first, _, _ := strings.Cut(dep, "/")
			if !inside && strings.Contains(first, ".") && first != "vendor" && !below(dep, "golang.org/x/sys") {
				return true
			}
		case strings.HasPrefix(n, "ext:"):
			if below(dep, n[len("ext:"):]) {
				return true
			}
		case inside && below(own, n) && !below(from, n):
			return true
		}
	}
	return false
}

func below(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }
