package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// identifyEvery is how often the registry is asked whose an attachment is of
// which the node has lost that.
const identifyEvery = 10 * time.Second

// identify finds out whose the attachments are that were taken up without a
// name, as after the loss of the journal, and returns when there are none left.
// Until then each is under every policy that there is, and the node says so.
func (a *agent) identify(ctx context.Context) {
	problem := a.problem("pods")
	for ctx.Err() == nil {
		lost := a.server.Unidentified()
		if len(lost) == 0 {
			problem("")
			return
		}
		pods, err := a.ownPods(ctx)
		if err == nil {
			err = identified(lost, pods, a.Node, a.server.Identify)
		}
		if err != nil {
			problem(fmt.Sprintf("of %d pods the node has lost which they are, so that every policy which could be about them denies what it can: %v; "+
				"a pod that stays unknown is freed of it by being started anew", len(lost), err))
			retry.Sleep(ctx, identifyEvery)
		}
	}
}

// regret has the node say of which pods it has lost what was asked for them, where it follows no
// objects that say it, and returns when there are none left.
func (a *agent) regret(ctx context.Context) {
	problem := a.problem("pods' ports and limits")
	var known []ipam.Attachment
	for ctx.Err() == nil {
		lost := a.server.Unrecorded()
		// The registry is asked only for what is new: it may be long until these pods go.
		if !slices.EqualFunc(known, lost, func(a, b ipam.Attachment) bool { return a.Key == b.Key && a.PodName == b.PodName }) {
			pods, err := a.ownPods(ctx)
			if known = nil; err == nil {
				known = lost
			}
			problem(regretted(lost, pods)) // what is not known for sure is told
		}
		if len(lost) == 0 {
			problem("")
			return
		}
		retry.Sleep(ctx, identifyEvery)
	}
}

// regretted is what there is to say of attachments whose records are lost. A pod that asks for
// nothing has lost nothing.
func regretted(lost []ipam.Attachment, pods []*corev1.Pod) string {
	var names []string
	for _, l := range lost {
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			asked, _ := api.PodNetwork(p)
			return l.Pod != "" && p.Namespace == l.Namespace && p.Name == l.Pod && (l.UID == "" || api.IsPod(p, l.UID)) &&
				len(plugin.HostPorts(p)) == 0 && asked.Ingress == 0 && asked.Egress == 0
		}) {
			continue
		}
		name := described(l)
		if l.Pod != "" {
			name = l.Namespace + "/" + l.Pod
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("the journal was lost, and with it which hostPorts and limits of bandwidth pods have that run since before: "+
		"those they had are not in force; start these pods anew: %s", printable.Few(names, 0))
}

// identified has each attachment identified of which it can be told whose it is,
// and says of the others why not.
func identified(lost []ipam.Attachment, pods []*corev1.Pod, node string, identify func(ipam.Key, ipam.PodName) error) error {
	var errs []error
	for _, l := range lost {
		p, err := whose(l, pods, node)
		if err == nil {
			err = identify(l.Key, ipam.PodName{Namespace: p.Namespace, Pod: p.Name, UID: string(p.UID)})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ownPods asks the registry for the pods of the node.
func (a *agent) ownPods(ctx context.Context) ([]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	list, _, err := a.Registry.List(ctx, api.Pod)
	if err != nil {
		return nil, fmt.Errorf("the registry cannot be asked: %w", err)
	}
	var own []*corev1.Pod
	for _, o := range list {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName == a.Node && !p.Spec.HostNetwork {
			own = append(own, p)
		}
	}
	return own, nil
}

// whose returns the one of the node's pods that an attachment belongs to: the
// one with its UID, or, where that is lost, too, the only one that runs with
// its addresses.
func whose(a ipam.Attachment, pods []*corev1.Pod, node string) (*corev1.Pod, error) {
	is := func(p *corev1.Pod) bool { return string(p.UID) == a.UID }
	if a.UID == "" {
		is = func(p *corev1.Pod) bool { return hasAddresses(p, a) }
	} else if !slices.ContainsFunc(pods, is) {
		is = func(p *corev1.Pod) bool { return api.IsPod(p, a.UID) } // a static one
	}
	first := slices.IndexFunc(pods, is)
	switch {
	case first < 0:
		return nil, fmt.Errorf("no pod of node %s is that of %s", node, described(a))
	case slices.ContainsFunc(pods[first+1:], is):
		return nil, fmt.Errorf("several pods of node %s could be that of %s", node, described(a))
	}
	return pods[first], nil
}

// described names an attachment for people.
func described(a ipam.Attachment) string {
	text := fmt.Sprintf("interface %s (container %s, addresses %v", a.HostInterface, a.ContainerID, a.Addresses)
	if a.Network != plan.DefaultNetwork {
		text += " in network " + a.Network
	}
	return text + ")"
}

// hasAddresses reports whether a pod that has not ended says that it has the
// addresses of an attachment, and no others. What a pod says names no network, and is
// taken to mean the default one.
func hasAddresses(p *corev1.Pod, a ipam.Attachment) bool {
	if a.Network != plan.DefaultNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || len(p.Status.PodIPs) != len(a.Addresses) {
		return false
	}
	for _, ip := range p.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err != nil || !slices.Contains(a.Addresses, address) {
			return false
		}
	}
	return true
}
