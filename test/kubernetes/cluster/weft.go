package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Weft says how Weft is installed as a cluster's network.
type Weft struct {
	// Chart is the directory of the Helm chart.
	Chart string
	// Image is the tar file of the container image, as make image writes it,
	// which the nodes know already (Config.Images, Cluster.Load).
	Image string
	// Plugin is "openshift-subnet" or "flannel", or one of them with policies,
	// "openshift-networkpolicy" or "flannel-networkpolicy". The ranges of pods are
	// the cluster's.
	Plugin string
	// Set are more of the chart's values, as NAME=VALUE.
	Set []string
}

// InstallWeft makes Weft the cluster's network, or replaces a Weft that is
// there, and returns when all nodes are ready. It needs helm beside the
// cluster's programs.
func (c *Cluster) InstallWeft(ctx context.Context, w Weft) error {
	image, err := imageName(w.Image)
	if err != nil {
		return err
	}
	values, err := w.values(image, c.Server(), c.config.PodCIDRs)
	if err == nil {
		values = append(values, c.config.names()...)
	}
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.config.Bin, "helm"), append([]string{"template", "weft", w.Chart}, values...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	manifests, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("render the chart %s: %w: %s", w.Chart, err, bytes.TrimSpace(stderr.Bytes()))
	}
	if err := c.Apply(ctx, manifests); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// values are the arguments that have helm render the chart for a cluster.
func (w Weft) values(image, server string, pods []netip.Prefix) ([]string, error) {
	colon := strings.LastIndexByte(image, ':')
	out := []string{
		"--namespace=weft-system", "--set=namespace.create=true",
		// A tag may be of digits alone, as a commit's number is now and then.
		"--set=image.repository=" + image[:colon], "--set-string=image.tag=" + image[colon+1:],
		"--set=network.plugin=" + w.Plugin,
		// Not by the Service, which kube-proxy serves only once it runs.
		"--set=kubernetes.api=" + server,
	}
	var name string
	var value any
	switch w.Plugin {
	case "openshift-subnet", "openshift-networkpolicy":
		type network struct {
			CIDR             string
			HostSubnetLength int `json:"hostSubnetLength"`
		}
		var networks []network
		for _, p := range pods {
			networks = append(networks, network{p.String(), p.Addr().BitLen() - nodeBits(p)})
		}
		name, value = "network.clusterNetworks", networks
	case "flannel", "flannel-networkpolicy":
		conf := map[string]any{"EnableIPv4": false, "Backend": map[string]string{"Type": "vxlan"}}
		for _, p := range pods {
			if p.Addr().Is4() {
				conf["EnableIPv4"], conf["Network"] = true, p
			} else {
				conf["EnableIPv6"], conf["IPv6Network"] = true, p
			}
		}
		name, value = "flannel.netConf", conf
	default:
		return nil, fmt.Errorf("plug-in %q: use openshift-subnet, openshift-networkpolicy, flannel or flannel-networkpolicy", w.Plugin)
	}
	b, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	out = append(out, "--set-json="+name+"="+string(b))
	for _, s := range w.Set {
		out = append(out, "--set="+s)
	}
	return out, nil
}

// names are the arguments that have helm render the name servers of nodes, or none.
func (c Config) names() []string {
	if c.DNS != NodeDNS {
		return []string{"--set=dns.enabled=false"}
	}
	return []string{fmt.Sprintf("--set-json=dns.clusterIPs=[%q]", c.clusterDNS())}
}

// imageName is the name, with the tag, of the image in a tar file.
func imageName(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: build it with: make image", err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("%s holds no manifest.json that names an image", path)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		if h.Name != "manifest.json" {
			continue
		}
		var images []struct{ RepoTags []string }
		if err := json.NewDecoder(r).Decode(&images); err != nil {
			return "", fmt.Errorf("%s: manifest.json: %w", path, err)
		}
		if len(images) != 1 || len(images[0].RepoTags) == 0 || !strings.Contains(images[0].RepoTags[0], ":") {
			return "", fmt.Errorf("%s: manifest.json does not name one image with a tag", path)
		}
		return images[0].RepoTags[0], nil
	}
}
