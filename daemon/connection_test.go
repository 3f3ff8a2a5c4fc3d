package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// kubeconfig returns a kubeconfig whose contexts are called after their
// servers; the first is the current one.
func kubeconfig(names ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Config\ncurrent-context: %s\nclusters:\n", names[0])
	for _, n := range names {
		fmt.Fprintf(&b, "- {name: %s, cluster: {server: \"https://%s:6443\"}}\n", n, n)
	}
	b.WriteString("contexts:\n")
	for _, n := range names {
		fmt.Fprintf(&b, "- {name: %s, context: {cluster: %s, user: u, namespace: of-%s}}\n", n, n, n)
	}
	b.WriteString("users:\n- {name: u, user: {token: t}}\n")
	return b.String()
}

// Which registry is used, and how it is reached, from what flags, variables, a
// lab and files say.
func TestSettings(t *testing.T) {
	lab := func() ([]string, string, error) { return []string{"unix:///lab"}, "", nil }
	noLab := func() ([]string, string, error) { return nil, "no lab is up", nil }
	for _, test := range []struct {
		name string
		only Kind
		// flags and variables are as typed, with HOME for the directory.
		flags, variables string
		embedded         string
		nearby           Nearby
		// file is the user's configuration file, own the kubeconfig at
		// ~/.kube/config.
		file, own string
		want      string
	}{
		{name: "a flag of etcd", flags: "--etcd-endpoints http://a:1", nearby: lab, own: kubeconfig("own"), want: "etcd http://a:1"},
		{name: "a variable of etcd", variables: "WEFT_ETCD_ENDPOINTS=http://a:1,http://b:1", nearby: lab, own: kubeconfig("own"), want: "etcd http://a:1,http://b:1"},
		{name: "a lab before the file and the kubeconfig", nearby: lab, file: "etcd: {endpoints: [http://a:1]}", own: kubeconfig("own"), want: "etcd unix:///lab"},
		{name: "a lab that asks who one is", nearby: lab, flags: "--etcd-user root:secret", file: "etcd: {user: other}", want: "etcd unix:///lab as root secret"},
		{name: "a lab that asks, and variables", nearby: lab, variables: "WEFT_ETCD_USER=root WEFT_ETCD_PASSWORD=secret", want: "etcd unix:///lab as root secret"},
		{name: "a lab is not who the file says", nearby: lab, file: "etcd: {user: 'other:secret'}", want: "etcd unix:///lab"},
		{name: "a lab before KUBECONFIG", nearby: lab, variables: "KUBECONFIG=HOME/.kube/config", own: kubeconfig("own"), want: "etcd unix:///lab"},
		{name: "a flag of Kubernetes before the lab", nearby: lab, flags: "--context other", own: kubeconfig("own", "other"), want: "kubernetes https://other:6443 weft-system of-other"},
		{name: "the registry before the lab", nearby: lab, flags: "--registry kubernetes", own: kubeconfig("own"), want: "kubernetes https://own:6443 weft-system of-own"},
		{name: "the variable before the lab", nearby: lab, variables: "WEFT_REGISTRY=kubernetes", own: kubeconfig("own"), want: "kubernetes https://own:6443 weft-system of-own"},
		{name: "a user without a lab gets the own cluster", nearby: noLab, own: kubeconfig("own"), want: "kubernetes https://own:6443 weft-system of-own"},
		{name: "a daemon does not take the user's own cluster", own: kubeconfig("own"), want: "error: no registry to talk to: "},
		{name: "a daemon takes the cluster of KUBECONFIG", variables: "KUBECONFIG=HOME/.kube/config", own: kubeconfig("own"), want: "kubernetes https://own:6443 weft-system of-own"},
		{name: "the file before KUBECONFIG", variables: "KUBECONFIG=HOME/.kube/config", file: "etcd: {endpoints: [http://a:1]}", own: kubeconfig("own"), want: "etcd http://a:1"},
		{name: "several files", variables: "KUBECONFIG=HOME/missing:HOME/.kube/config", flags: "--context other", own: kubeconfig("own", "other"), want: "kubernetes https://other:6443 weft-system of-other"},
		{name: "the file names the cluster", nearby: noLab, file: "kubernetes: {kubeconfig: HOME/.kube/config, context: other, namespace: net}", own: kubeconfig("own", "other"), want: "kubernetes https://other:6443 net of-other"},
		{name: "flags before the file", nearby: noLab, flags: "--context own --kubernetes-namespace n", file: "kubernetes: {context: other, namespace: net}", own: kubeconfig("own", "other"), want: "kubernetes https://own:6443 n of-own"},
		{name: "the file chooses between its two", nearby: noLab, file: "registry: etcd\netcd: {endpoints: [http://a:1]}\nkubernetes: {context: other}", want: "etcd http://a:1"},
		{name: "the file does not choose", nearby: noLab, file: "etcd: {endpoints: [http://a:1]}\nkubernetes: {context: other}", want: "error: the configuration file has settings of etcd and of Kubernetes"},
		{name: "another address of the API server", flags: "--kubeconfig HOME/.kube/config --kubernetes-api https://10.0.0.1:6443", own: kubeconfig("own"), want: "kubernetes https://10.0.0.1:6443 weft-system of-own"},
		{name: "kubectl's plug-in", only: Kubernetes, nearby: lab, variables: "WEFT_ETCD_ENDPOINTS=http://a:1 WEFT_REGISTRY=etcd", own: kubeconfig("own"), want: "kubernetes https://own:6443 weft-system of-own"},
		{name: "kubectl's plug-in without a cluster", only: Kubernetes, nearby: lab, want: "error: no Kubernetes cluster to talk to: no kubeconfig is in HOME/.kube/config, and this is not a pod"},
		{name: "the embedded etcd", embedded: "unix:///e", variables: "WEFT_ETCD_ENDPOINTS=http://a:1", want: "etcd unix:///e"},
		{name: "another than the embedded etcd", embedded: "unix:///e", flags: "--etcd-endpoints http://a:1", want: "etcd http://a:1"},

		{name: "both kinds of flags", flags: "--etcd-cacert f --context c", want: "error: --etcd-cacert is for the registry etcd and --context for Kubernetes: leave one of them out"},
		{name: "etcd's flag for Kubernetes", flags: "--registry kubernetes --etcd-prefix /p", want: "error: --etcd-prefix is for the registry etcd, but --registry is kubernetes"},
		{name: "Kubernetes' flag for etcd", flags: "--registry etcd --kubeconfig f", want: "error: --kubeconfig is for the registry Kubernetes, but --registry is etcd"},
		{name: "embedded for Kubernetes", flags: "--registry kubernetes", embedded: "unix:///e", want: "error: --embedded-etcd is for the registry etcd, but --registry is kubernetes"},
		{name: "no such registry", flags: "--registry consul", want: `error: --registry "consul": the registries are etcd and kubernetes`},
		{name: "no such registry in the environment", variables: "WEFT_REGISTRY=consul", want: `error: WEFT_REGISTRY "consul": the registries are`},
		{name: "no such registry in the file", file: "registry: consul", want: `error: registry in the configuration file "consul"`},
		{name: "no such key in the file", file: "kubernetes: {server: x}", want: `error: configuration file HOME/.config/weft/config.yaml: `},
		{name: "etcd without endpoints", flags: "--registry etcd", nearby: noLab, want: "error: --registry says that the registry is etcd, but --etcd-endpoints and WEFT_ETCD_ENDPOINTS are not set, no lab is up, and no endpoints are in"},
		{name: "nothing", nearby: noLab, want: "error: no registry to talk to: no flag names one, as --etcd-endpoints or --kubeconfig do, WEFT_REGISTRY, WEFT_ETCD_ENDPOINTS and KUBECONFIG are not set, no lab is up, and none is in HOME/.config/weft/config.yaml or /etc/weft/config.yaml or HOME/.kube/config"},
		{name: "no such kubeconfig", flags: "--kubeconfig HOME/missing", want: "error: kubeconfig: stat HOME/missing: no such file"},
		{name: "an empty kubeconfig", flags: "--kubeconfig HOME/.kube/config", own: "apiVersion: v1\nkind: Config\n", want: "error: kubeconfig HOME/.kube/config: there is no cluster in it"},
		{name: "no such context", flags: "--context missing", own: kubeconfig("own"), want: `error: kubeconfig HOME/.kube/config: context "missing" does not exist`},
		{name: "a broken kubeconfig", flags: "--kubeconfig HOME/.kube/config", own: "]", want: "error: kubeconfig: error loading config file"},
		{name: "a context without any kubeconfig", flags: "--context c", want: `error: there is no context "c": no kubeconfig is in HOME/.kube/config`},
	} {
		t.Run(test.name, func(t *testing.T) {
			home := t.TempDir()
			at := func(s string) string { return strings.ReplaceAll(s, "HOME", home) }
			for name, content := range map[string]string{".config/weft/config.yaml": test.file, ".kube/config": test.own} {
				if content == "" {
					continue
				}
				path := filepath.Join(home, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(at(content)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			variables := map[string]string{"HOME": home}
			for v := range strings.FieldsSeq(at(test.variables)) {
				name, value, _ := strings.Cut(v, "=")
				variables[name] = value
			}
			c := &Connection{Only: test.only}
			cmd := &cobra.Command{}
			c.AddFlags(cmd)
			if err := cmd.ParseFlags(strings.Fields(at(test.flags))); err != nil {
				t.Fatal(err)
			}
			var err error
			var settings Settings
			if test.embedded != "" {
				err = c.Embed()
				c.Embedded(test.embedded)
			}
			if err == nil {
				settings, err = c.Settings(func(name string) string { return variables[name] }, test.nearby)
			}
			var got string
			switch {
			case err != nil:
				got = "error: " + err.Error()
			case settings.Etcd != nil:
				got = "etcd " + strings.Join(settings.Etcd.Endpoints, ",")
				if settings.Etcd.Username != "" {
					got += " as " + settings.Etcd.Username + " " + settings.Etcd.Password
				}
			default:
				got = fmt.Sprintf("kubernetes %s %s %s", settings.Kubernetes.REST.Host, settings.Kubernetes.Namespace, settings.Kubernetes.Default)
			}
			want := at(test.want)
			if got != want && (err == nil || !strings.HasPrefix(got, want)) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}
