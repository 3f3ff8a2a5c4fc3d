package kubeproxy

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// modeIPVS is the mode in which the kernel's IPVS translates connections.
const modeIPVS = "ipvs"

// breaking says that connections break where kube-proxy, which has not been ended yet, is in mode ipvs, or may
// be: connection tracking knows nothing of what IPVS translates.
func (c *Change) breaking(ctx context.Context, d *appsv1.DaemonSet) error {
	if d.Spec.Template.Spec.NodeSelector[nowhere] == removed {
		return nil
	}
	mode, where, err := c.mode(ctx, d)
	switch {
	case err != nil && !c.Force:
		return fmt.Errorf("nothing was changed: whether kube-proxy is in mode ipvs, so that connections that it has translated break without it, is not known: %w: "+
			"in that mode its nodes have an interface kube-ipvs0 (ip link); give --force if none has, or if connections may break", err)
	case err != nil:
		c.say("connections that kube-proxy has translated break if it is in mode ipvs, which is not known: %v", err)
	case mode == modeIPVS && !c.Force:
		return fmt.Errorf("nothing was changed: kube-proxy is in mode ipvs, as %s says, so that connections that it has translated break without it, and nobody tells their ends: "+
			"set the mode to iptables there, have its pods start anew, and wait until those connections have ended, or give --force", where)
	case mode == modeIPVS:
		c.say("connections that kube-proxy has translated break, as it is in mode ipvs")
	}
	return nil
}

// proxyOf returns the container of a pod that runs kube-proxy, and false where none is known to.
func proxyOf(s *corev1.PodSpec) (*corev1.Container, bool) {
	i := slices.IndexFunc(s.Containers, func(c corev1.Container) bool {
		return len(c.Command) > 0 && path.Base(c.Command[0]) == "kube-proxy"
	})
	if i < 0 {
		return nil, false
	}
	return &s.Containers[i], true
}

// mode returns the mode of a DaemonSet's kube-proxy, "" where that is kube-proxy's own choice, and where it is
// said. As kube-proxy does, it asks the file of --config alone where there is one. It fails where the mode is not
// known.
func (c *Change) mode(ctx context.Context, d *appsv1.DaemonSet) (mode, where string, err error) {
	where = fmt.Sprintf("DaemonSet %s/%s", d.Namespace, d.Name)
	proxy, is := proxyOf(&d.Spec.Template.Spec)
	if !is {
		return "", "", fmt.Errorf("no container of %s has the command kube-proxy", where)
	}
	flags := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	file := flags.String("config", "", "")
	flags.StringVar(&mode, "proxy-mode", "", "")
	if err := flags.Parse(slices.Concat(proxy.Command[1:], proxy.Args)); err != nil {
		return "", "", fmt.Errorf("the command of %s: %w", where, err)
	}
	if *file != "" {
		if mode, where, err = c.modeIn(ctx, d, proxy, *file); err != nil {
			return "", "", err
		}
	}
	switch mode {
	case "", "iptables", "nftables", modeIPVS:
		return mode, where, nil
	}
	return "", "", fmt.Errorf("%s says mode %q", where, mode)
}

// modeIn returns what the file of --config says, and whose it is: that of a ConfigMap, as no other is seen from
// here.
func (c *Change) modeIn(ctx context.Context, d *appsv1.DaemonSet, proxy *corev1.Container, file string) (mode, where string, err error) {
	name, key := configMapOf(&d.Spec.Template.Spec, proxy, file)
	if name == "" {
		return "", "", fmt.Errorf("its configuration is %s, which DaemonSet %s/%s has of no ConfigMap", file, d.Namespace, d.Name)
	}
	where = fmt.Sprintf("the ConfigMap %s/%s", d.Namespace, name)
	o, err := c.client.Resource(configMaps).Namespace(d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("read %s, which has its configuration: %w", where, err)
	}
	text, there, _ := unstructured.NestedString(o.Object, "data", key)
	if !there {
		return "", "", fmt.Errorf("%s has no %s, which is to be its configuration", where, key)
	}
	var config struct {
		Mode string `json:"mode"`
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		return "", "", fmt.Errorf("%s: %s: %w", where, key, err)
	}
	return config.Mode, where, nil
}

// configMapOf returns the ConfigMap that a container has a file of, and the file's key in there; "" where that
// is no ConfigMap's.
func configMapOf(s *corev1.PodSpec, of *corev1.Container, file string) (name, key string) {
	var mount corev1.VolumeMount
	var inside string
	for _, m := range of.VolumeMounts {
		rest, is := strings.CutPrefix(path.Clean(file)+"/", path.Clean(m.MountPath)+"/")
		if is && len(m.MountPath) > len(mount.MountPath) {
			mount, inside = m, path.Join(m.SubPath, rest)
		}
	}
	i := slices.IndexFunc(s.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name && v.ConfigMap != nil })
	if i < 0 {
		return "", ""
	}
	is := s.Volumes[i].ConfigMap
	if j := slices.IndexFunc(is.Items, func(k corev1.KeyToPath) bool { return path.Clean(k.Path) == inside }); j >= 0 {
		return is.Name, is.Items[j].Key
	} else if len(is.Items) > 0 {
		return "", ""
	}
	return is.Name, inside
}
