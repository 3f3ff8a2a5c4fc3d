package change

import (
	"slices"
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
)

const openshiftSubnet, flannelPlain = "openshift-subnet", "flannel"

// TestTakenBack takes changes back at every stage: while nodes cannot get ready, while
// they get ready, as they have just changed, and after some of them did.
func TestTakenBack(t *testing.T) {
	c := up(t, lab.Options{Plugin: openshiftSubnet})
	old := slices.Concat(c.onEach("a", talker), c.onEach("b", talker))
	c.among(old)
	always := &traffics{c: c}
	always.load(old, old, baseRate, baseHeld)
	step := func(what string, do func()) {
		c.Helper()
		start := time.Now()
		do()
		c.well()
		c.unchanged()
		c.Logf("%s: %s", what, time.Since(start).Round(time.Millisecond))
	}
	step("aborted while flannel has no configuration", func() {
		c.weft("plugin", "change", flannelPlain).want(c, 0)
		c.status("waits", func(s pluginStatus) bool { return s.State == api.PluginWaiting && slices.Contains(s.Mix, flannelPlain) })
		c.weft("plugin", "change", "--abort").want(c, 0)
		c.settled(openshiftSubnet)
	})
	step("aborted while nodes get ready", func() {
		c.configureFlannel(flannelConfig(otherRange, ""))
		c.weft("plugin", "change", flannelPlain).want(c, 0)
		c.status("loads", func(s pluginStatus) bool { return slices.Contains(s.Mix, flannelPlain) })
		c.weft("plugin", "change", "--abort").want(c, 0)
		// It may have been too late, and the change be done.
		c.weft("plugin", "change", openshiftSubnet, "--wait").want(c, 0)
		c.settled(openshiftSubnet)
	})
	step("changed back at once after the switch", func() {
		c.weft("plugin", "change", flannelPlain).want(c, 0)
		c.status("switches", func(s pluginStatus) bool { return s.Used == flannelPlain })
		c.weft("plugin", "change", openshiftSubnet).want(c, 0)
		amid := c.onEach("amid", talker)
		c.among(old, amid)
		c.remove(amid...)
		c.settled(openshiftSubnet)
	})
	step("a canary for a while, then all", func() {
		more := &traffics{c: c}
		fresh := c.canary(old, more)
		c.weft("plugin", "change", flannelPlain, "--wait").want(c, 0, "Done")
		rest := c.onEach("rest", talker)
		for _, p := range rest {
			c.isOf(p, flannelPlain)
		}
		c.among(old, fresh, rest)
		c.weft("plugin", "change", openshiftSubnet, "--wait").want(c, 0, "Done")
		c.among(old, fresh, rest)
		more.finish()
		c.remove(slices.Concat(fresh, rest)...)
		c.settled(openshiftSubnet)
	})
	step("a canary that is aborted", func() {
		more := &traffics{c: c}
		fresh := c.canary(old, more)
		c.weft("plugin", "change", "--abort", "--wait").want(c, 0, "Done")
		after := c.onEach("after", talker)
		for _, p := range after {
			c.isOf(p, openshiftSubnet)
		}
		c.among(old, fresh, after)
		more.finish()
		c.remove(slices.Concat(fresh, after)...)
		c.settled(openshiftSubnet)
	})
	always.finishFull()
}

// canary has the first node alone change to flannel, and all live with that for a while.
// It returns the pods that were started.
func (c *cluster) canary(old []pod, more *traffics) (fresh []pod) {
	c.Helper()
	c.weft("plugin", "change", flannelPlain, "--node", "node1", "--wait").want(c, 0, "Done")
	fresh = c.onEach("mixed", talker)
	c.isOf(fresh[0], flannelPlain)
	for _, p := range fresh[1:] {
		c.isOf(p, openshiftSubnet)
	}
	c.among(old, fresh)
	more.load(old, fresh, moreRate, moreHeld)
	more.load(fresh, old, moreRate, moreHeld)
	time.Sleep(hold)
	c.status("waits for the others", func(s pluginStatus) bool {
		return s.State == api.PluginWaiting && s.Used == openshiftSubnet && slices.Contains(s.Mix, flannelPlain)
	})
	return fresh
}
