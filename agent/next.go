package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// sayUnreadAfter is how long what the next choice of plug-ins reads may be on its way until
// it is said that it is missing.
const sayUnreadAfter = time.Second

// awaitNext returns true once the node is to run another choice of plug-ins than now, and
// what that one reads has been read; false when ctx ends before. Until then now goes on in
// full: the next one could do nothing before it knows what users ask of it, and a kind that
// cannot be read, as there is no such kind yet, or nobody allowed it, may stay so.
func (a *agent) awaitNext(ctx context.Context, f *follower, now plugin.Choice, changes <-chan struct{}, effective func() *api.ClusterConfig) bool {
	problem := a.problem(nextPart)
	defer problem("")
	kinds, last, said := a.kindsOf(now), now, ""
	read := make(chan struct{}, 1)
	late := time.NewTimer(sayUnreadAfter)
	defer late.Stop()
	heard := false
	for {
		next := a.choice(effective())
		if !next.Equal(last) {
			last, said = next, ""
			problem("")
			late.Reset(sayUnreadAfter)
		}
		var unread []*registry.Cache
		if next.Equal(now) {
			f.follow(kinds) // what another was to read nobody reads any more
		} else if unread = f.unread(a.kindsOf(next), kinds); len(unread) == 0 {
			return true
		}
		if heard && (next.Equal(now) || said != "") {
			a.kick() // for what else the configuration says
		}
		heard = false
		var cancels []func()
		for _, c := range unread {
			cancels = append(cancels, c.Notify(read))
		}
		select {
		case <-ctx.Done():
		case <-changes:
			heard = true
		case <-read:
		case <-late.C:
			if len(unread) == 0 {
				break
			}
			late.Reset(sayUnreadAfter)
			if text := waiting(now, next, unread); text != said {
				said = text
				problem(text)
				a.kick() // for the report
			}
		}
		for _, cancel := range cancels {
			cancel()
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

// unread follows the kinds that the next choice reads beside others, and returns the caches
// of those that have not been read yet.
func (f *follower) unread(next, others []*registry.Kind) []*registry.Cache {
	all := slices.Clone(next)
	for _, k := range others {
		if !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return slices.DeleteFunc(f.follow(all)[:len(next)], (*registry.Cache).Synced)
}

// waiting says what keeps the next choice of plug-ins from being run.
func waiting(now, next plugin.Choice, unread []*registry.Cache) string {
	var why []string
	for _, c := range unread {
		if err := c.Err(); err != nil {
			why = append(why, err.Error())
		}
	}
	if len(why) == 0 {
		why = []string{"the registry has not answered yet"}
	}
	return fmt.Sprintf("the node goes on with %s, and cannot load %s yet: %s", strings.Join(now.Mix, " and "), strings.Join(next.Beyond(now), " and "), strings.Join(why, "; "))
}

// kindsOf returns the kinds that a choice of plug-ins reads, of those that there are, those
// that names are made of, and Nodes, which say who may have VirtualAddresses: not all plug-ins
// read them where Services are left to another program.
func (a *agent) kindsOf(c plugin.Choice) []*registry.Kind {
	all, _, err := c.Find(a.Plugin)
	if err != nil {
		return nil
	}
	kinds := slices.Clone(plugin.Mix(all[0], all[1:]...).Kinds())
	for _, k := range append(slices.Clone(compile.Kinds), api.Node) {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}
