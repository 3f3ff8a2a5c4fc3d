package flannel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

const (
	// attempts is how often a node looks what is to be done for its lease, and does it,
	// before it pauses: it loses races for subnets.
	attempts = 10
	// callTimeout bounds each call to the registry.
	callTimeout = 10 * time.Second
	// firstPause and longestPause bound the time between attempts after an error.
	firstPause, longestPause = time.Second, 30 * time.Second
)

// RunNode implements plugin.NodeRunner: it takes the node's lease in
// flanneld's order (the lease that names the node's address, also if it is a
// reservation; the subnet of the subnet file; one of the first free ones),
// renews it, takes it again when it is lost, and writes the subnet file.
func (p Plugin) RunNode(ctx context.Context, n plugin.NodeEnv) error {
	p = p.withDefaults()
	n.SubnetFile = cmp.Or(n.SubnetFile, DefaultSubnetFile)
	r := &runner{Plugin: p, keeper: keeper{NodeEnv: n}, now: time.Now}
	if content, err := os.ReadFile(n.SubnetFile); err == nil {
		r.former = parseSubnetFile(content)
	}
	return r.run(ctx, r.reconcile)
}

// runner is one run of RunNode.
type runner struct {
	Plugin
	keeper
	now func() time.Time

	// renew is of the lease that this run has written last. How long any other still
	// lives nobody says.
	renew renewal
	// former is the subnet that the node had last.
	former Subnet
	// settings and config are the last configuration that meant something.
	settings *Settings
	config   []byte
}

// renewal is when a lease is to be written again to live on.
type renewal struct {
	lease string // its name
	at    time.Time
}

// reconcile brings the lease and the subnet file to what they must be, and
// returns how long that will do.
func (r *runner) reconcile(ctx context.Context, in plugin.Input) (time.Duration, error) {
	v, s, err := r.settle(ctx, in)
	if v == nil || s.verb != keep {
		return r.TTL, err
	}
	return r.hold(v, s), errors.Join(err, r.writeSubnetFile(in, v.settings, s.subnet))
}

// settle takes steps until there is none left, and returns what that was decided
// by, and the last, which is to keep the lease, or to give it back once no pod gets
// addresses of it. Without a configuration there is no view.
func (r *runner) settle(ctx context.Context, in plugin.Input) (*view, step, error) {
	// Most changes are to other nodes' leases: those are looked at in what the
	// agent knows, which may be behind. What is to be done is decided on fresh
	// objects alone.
	var last string // what was done last, and what came of it
	var gone Subnet // of which nobody can get an address any more
	for i := range attempts {
		if i > 0 {
			fresh, err := r.fresh(ctx)
			if err != nil {
				return nil, step{}, err
			}
			in = fresh
		}
		v, configErr := r.view(in)
		if v == nil {
			return nil, step{}, configErr
		}
		s, err := v.decide()
		if err != nil {
			return nil, step{}, err
		}
		if s.verb == keep {
			return v, s, configErr
		}
		if s.verb == release && s.subnet != gone {
			// Once the node gives no addresses of it, it is looked again whether a pod
			// has got one meanwhile.
			if r.gives(v, s.subnet) {
				return v, s, configErr
			}
			gone = s.subnet
			continue
		}
		if i == 0 {
			continue
		}
		last = fmt.Sprintf("%s %s (%s)", s.verb, s.subnet, s.reason)
		if err := r.do(ctx, v.node, s); lostRace(err) {
			last += ": " + err.Error()
		} else if err != nil {
			return nil, step{}, err
		}
	}
	return nil, step{}, fmt.Errorf("looked %d times, and the node still has no lease that it keeps; the last step was to %s", attempts, last)
}

// gives reports whether pods may still get addresses of a subnet that are no other
// plug-in's, by what the data plane does.
func (r *runner) gives(v *view, s Subnet) bool {
	if r.Applied == nil || v.kept(s) {
		return false
	}
	done := r.Applied()
	return done == nil || slices.ContainsFunc(done.Plan.Local.Pools, func(p plan.Pool) bool {
		return !p.Closed && p.Network == plan.DefaultNetwork && slices.ContainsFunc(s.Prefixes(), p.Prefix.Overlaps)
	})
}

func lostRace(err error) bool {
	return errors.Is(err, registry.ErrExists) || errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound)
}

// fresh returns what the agent knows, with configuration and leases as the
// registry has them.
func (r *runner) fresh(ctx context.Context) (plugin.Input, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s := registry.Snapshot{}
	for _, k := range []*registry.Kind{r.Plugin.Config, r.Leases, r.Reservations} {
		objects, _, err := r.Registry.List(ctx, k)
		if err != nil {
			return plugin.Input{}, err
		}
		s[k] = objects
	}
	in, _ := r.Input()
	s[api.Node] = slices.Collect(in.Objects.All(api.Node))
	in.Objects = s
	return in, nil
}

// view gathers what the next step follows from. It returns nil where no
// configuration was ever known, and an error where it is not known now.
func (r *runner) view(in plugin.Input) (*view, error) {
	node, objects := in.Node, in.Objects
	who := ownerOf(node, objects)
	leases, _ := r.readLeases(objects)
	reserved, _ := readReservations(objects, r.Reservations)
	settings, configErr := readSettings(objects, r.Plugin.Config)
	if configErr == nil {
		r.settings = &settings
		r.config, configErr = compact(registry.GetAs[*Config](objects, r.Plugin.Config, registry.Key{Name: ConfigName}).Spec)
	} else if r.settings == nil {
		if own := who.find(leases, nil); own != nil && own.Weft != nil {
			if former, err := ParseSettings(own.Weft.Config); err == nil {
				r.settings, r.config = &former, own.Weft.Config
			}
		}
	}
	if configErr != nil {
		configErr = compileTells(fmt.Errorf("flannel's configuration: %w", configErr))
	}
	if r.settings == nil {
		return nil, configErr
	}
	v := &view{
		settings: *r.settings, config: r.config, node: node, owner: who, leases: leases,
		reserved: reserved, forced: forced(in), former: r.former, pick: r.Pick,
	}
	own := v.own()
	v.due = own != nil && (own.Name != r.renew.lease || !r.now().Before(r.renew.at))
	return v, configErr
}

// do takes a step.
func (r *runner) do(ctx context.Context, node plugin.Node, s step) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	log := r.Log.With("lease", s.object.Name, "because", s.reason)
	switch s.verb {
	case release:
		log.Warn("giving the lease back")
		return r.Registry.Delete(ctx, r.Leases, registry.KeyOf(s.object), s.object.ResourceVersion)
	case create:
		r.sayIfMoved(node, s.subnet)
		log.Info("taking a lease")
		if _, err := r.Registry.Create(ctx, r.Leases, s.object, registry.WithTTL(r.TTL)); err != nil {
			return err
		}
	default:
		log.Debug("writing the lease")
		var options []registry.WriteOption
		if s.object.Expires {
			options = append(options, registry.WithTTL(r.TTL))
		}
		if _, err := r.Registry.Update(ctx, r.Leases, s.object, options...); err != nil {
			return err
		}
	}
	r.renew = renewal{s.object.Name, r.now().Add(r.TTL - r.RenewMargin)}
	return nil
}

// hold notes that the node has its lease, and returns when to look again.
func (r *runner) hold(v *view, s step) time.Duration {
	if s.subnet != r.former {
		r.Log.Info("holding a lease", "lease", s.object.Name, "reservation", !s.object.Expires)
	}
	r.former = s.subnet
	wait := r.TTL
	if s.object.Expires {
		wait = max(1, r.renew.at.Sub(r.now())) // 0 would be never
	}
	if !v.settings.Allows(s.subnet) {
		wait = min(wait, longestPause) // the last pod on it may go
	}
	return wait
}

// sayIfMoved warns when pods live on a subnet that the node cannot get again.
func (r *runner) sayIfMoved(node plugin.Node, to Subnet) {
	for _, e := range stranded(node, to) {
		r.Log.Error("a pod lives on a subnet that the node has lost: others cannot connect to it until it is deleted and made anew",
			"pod", e.Name(), "addresses", e.Addresses, "lost", r.former, "instead", to)
	}
}
