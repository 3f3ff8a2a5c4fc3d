package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
)

// The names of etcd's users and roles. Of a user with a client certificate it is
// the certificate's common name.
const (
	nodeAccount       = "weft-node-" // and the node's name
	controllerAccount = "weft-controller"
	adminAccount      = "weft-admin"
	viewerAccount     = "weft-view"
	accountPrefix     = "weft-"
)

// grantee is how grant names whom a user is for; "" where grant makes no such user.
func grantee(user string) string {
	if node, ofNode := strings.CutPrefix(user, nodeAccount); ofNode {
		return "node " + node
	}
	who := strings.TrimPrefix(user, accountPrefix)
	if _, err := accountNamed("", who); err != nil {
		return ""
	}
	return who
}

// flannelKeys are what all keys of flannel's begin with.
const flannelKeys = flannel.DefaultPrefix + "/"

// accountOfNode is what a node's agent may do: read everything, and write what
// is said of its own node, and Tags, which all agents make for all. reserved are
// the names of flannel's leases that are reserved for the node.
func accountOfNode(prefix, node string, reserved []string) etcd.Account {
	a := etcd.Account{Name: nodeAccount + node, Permissions: []etcd.Permission{
		{Key: prefix + "/", Prefix: true},
		{Key: flannelKeys, Prefix: true},
		{Key: etcd.LeaseKey(prefix, api.NodeLease(node)), Write: true},
		{Key: etcd.LeaseKey(prefix, api.RivalLease(node)), Write: true},
		{Key: api.TagKind.Prefix(prefix), Prefix: true, Write: true},
	}}
	for _, k := range api.NodeKinds {
		key, _ := k.Path(prefix, registry.Key{Name: node})
		a.Permissions = append(a.Permissions, etcd.Permission{Key: key, Write: true})
	}
	for _, lease := range reserved {
		key, _ := flannel.LeaseKind.Path(prefix, registry.Key{Name: lease})
		a.Permissions = append(a.Permissions, etcd.Permission{Key: key, Write: true})
	}
	return a
}

// accountNamed is what the controller, and people, may do.
func accountNamed(prefix, who string) (etcd.Account, error) {
	own, flannels := etcd.Permission{Key: prefix + "/", Prefix: true}, etcd.Permission{Key: flannelKeys, Prefix: true}
	a := etcd.Account{}
	switch who {
	case "controller":
		a.Name, own.Write = controllerAccount, true
	case "admin":
		a.Name, own.Write, flannels.Write = adminAccount, true, true
	case "view":
		a.Name = viewerAccount
	default:
		return a, fmt.Errorf("there is no account for %q: there are node NAME..., controller, admin and view", who)
	}
	a.Permissions = []etcd.Permission{own, flannels}
	return a, nil
}

func newEtcd(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Say in etcd who may write what",
		Long: `etcd makes users and roles in the etcd that is Weft's registry, so that the agent
of a node can write what is its own node's and nothing else. On Kubernetes, RBAC
and admission policies do that.

A user is called weft-node-NAME, weft-controller, weft-admin or weft-view, and has
a role of the same name. Who shows a client certificate with that common name is
that user; others log in with a password. Only etcd's root may change users and
roles once authentication is on.`,
	}
	cmd.Args = noSuchCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(newEtcdGrant(c), newEtcdRevoke(c), newEtcdList(c), newEtcdEnableAuth(c))
	return cmd
}

// openEtcd connects to the registry, which must be etcd.
func (c *connection) openEtcd(ctx context.Context) (*etcd.Registry, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, err
	}
	if settings.Etcd == nil {
		return nil, errors.New("the registry is Kubernetes, whose RBAC says who may write what: see weft-agent in docs/kubernetes.md")
	}
	config := *settings.Etcd
	config.Log = warningsTo(os.Stderr)
	r, err := etcd.Open(config)
	if err == nil {
		if err = r.Ping(ctx); err != nil {
			r.Close()
			return nil, c.inLab(err)
		}
	}
	return r, err
}

// passwordFlag gives a command the flag --password-file.
func passwordFlag(cmd *cobra.Command, usage string) func() (string, error) {
	file := cmd.Flags().String("password-file", "", usage)
	return func() (string, error) {
		if *file == "" {
			return "", nil
		}
		b, err := os.ReadFile(*file)
		if err != nil {
			return "", fmt.Errorf("--password-file: %w", err)
		}
		password := strings.TrimRight(string(b), "\r\n")
		if password == "" {
			return "", fmt.Errorf("--password-file %s is empty", *file)
		}
		return password, nil
	}
}

// told writes commands of etcdctl below what is to be known of them: whether what they do
// is done.
type told struct {
	out   io.Writer
	print bool
	begun bool
}

// Write implements io.Writer.
func (t *told) Write(b []byte) (int, error) {
	if !t.begun {
		t.begun = true
		if t.print {
			io.WriteString(t.out, "# nothing is done yet; these commands of etcdctl do it:\n")
		} else {
			io.WriteString(t.out, "# this is done, as by these commands of etcdctl:\n")
		}
	}
	return t.out.Write(b)
}

// carryOut does steps, or prints them.
func carryOut(ctx context.Context, r *etcd.Registry, out *told, steps []etcd.Step) error {
	for _, s := range steps {
		if !out.print {
			if err := r.Do(ctx, s); err != nil {
				return err
			}
		}
		fmt.Fprintln(out, s)
	}
	if !out.begun {
		fmt.Fprintln(out.out, "# nothing is to be done")
	}
	return nil
}

const printUsage = "print the commands of etcdctl that do it, and change nothing"

func newEtcdGrant(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grant (node NAME... | controller | admin | view)",
		Short: "Make a user and its role, or bring them to what they should be",
		Long: `grant makes a user and a role of etcd for each agent, for the controllers, or for
people: admin may change all objects, view may read them. What is there already is
brought to what it should be, so it can be repeated; it prints what it did, as commands
of etcdctl that do the same. Other
roles of the user are taken from it. With --password-file a user that is there is
made anew, so that it has that password.

Where the cluster's plug-in is flannel, or one of those that it changes between, a
node's lease must be known before the node has it, as a role names keys: grant
reserves a subnet for the node, which other agents then hold to it and to its
address. So grant the nodes anew once a change to flannel is asked for.`,
		Example: `  weft etcd grant controller
  weft etcd grant node node1 node2 node3
  weft etcd grant node node4 --address 10.0.0.14 --password-file node4.password
  weft etcd grant node node5 --print`,
		Args:      argsBetween("node and NAMEs, controller, admin or view", 1, math.MaxInt),
		ValidArgs: []string{"node", "controller", "admin", "view"},
	}
	c.AddFlags(cmd)
	password := passwordFlag(cmd, "`FILE` with the password to give the user; without, it needs a client certificate with its name as common name")
	addresses := cmd.Flags().StringSlice("address", nil, "`ADDRESSES` by which others reach the node, one of each family (plug-in flannel; default: those in the Node object)")
	print := cmd.Flags().Bool("print", false, printUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		secret, err := password()
		if err != nil {
			return err
		}
		if err := checkAccounts(args); err != nil {
			return err
		}
		for _, node := range args[1:] {
			if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
				return fmt.Errorf("node %q: no node can be called so: %s", node, strings.Join(problems, "; "))
			}
		}
		var own []netip.Addr
		for _, text := range *addresses {
			a, err := netip.ParseAddr(text)
			if err != nil || len(args) != 2 {
				return fmt.Errorf("--address %s: it must be an address of the one node that is named", text)
			}
			own = append(own, a)
		}
		r, err := c.openEtcd(cmd.Context())
		if err != nil {
			return err
		}
		defer r.Close()
		out := &told{out: cmd.OutOrStdout(), print: *print}
		var accounts []etcd.Account
		if args[0] != "node" {
			a, err := accountNamed(r.Prefix(), args[0])
			if err != nil {
				return err
			}
			accounts = append(accounts, a)
		}
		for _, node := range args[1:] {
			reserved, err := reserve(cmd.Context(), r, node, own, *print, out)
			if err != nil {
				return err
			}
			accounts = append(accounts, accountOfNode(r.Prefix(), node, reserved))
		}
		var steps []etcd.Step
		for _, a := range accounts {
			missing, err := r.Missing(cmd.Context(), a, secret)
			if err != nil {
				return err
			}
			steps = append(steps, missing...)
		}
		return carryOut(cmd.Context(), r, out, steps)
	}
	return cmd
}

// checkAccounts says what is wrong with the words that name accounts.
func checkAccounts(args []string) error {
	if args[0] != "node" {
		if _, err := accountNamed("", args[0]); err != nil || len(args) == 1 {
			return err
		}
		return fmt.Errorf("%s is the only account of its kind: leave out %q", args[0], args[1])
	}
	if len(args) == 1 {
		return errors.New("which node? Name it after the word node")
	}
	for _, node := range args[1:] {
		if _, ok := api.Node.Path("", registry.Key{Name: node}); !ok || strings.Contains(node, ":") {
			return fmt.Errorf("node %q: no user of etcd can be called so; a node's name has no slash, percent sign or colon", node)
		}
	}
	return nil
}

// hasLeases reports whether nodes hold leases of flannel's, as they use it or load it, or
// will, as it is asked for.
func hasLeases(config *api.ClusterConfig) bool {
	return slices.ContainsFunc(append(api.PluginMix(config), config.Spec.Plugin), func(name string) bool { return plugins.Base(name) == flannel.Name })
}

// reserve returns the names of flannel's leases that are reserved for a node. Where nodes
// have leases, one more is where it can take none of them, and all say its addresses: which
// of several it takes follows from where its pods live as well, and that only the node knows.
func reserve(ctx context.Context, r *etcd.Registry, node string, addresses []netip.Addr, print bool, out io.Writer) ([]string, error) {
	config, err := r.Get(ctx, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return nil, err
	}
	objects := registry.Snapshot{}
	for _, k := range []*registry.Kind{flannel.ConfigKind, flannel.LeaseKind, flannel.ReservationKind, api.Node} {
		if objects[k], _, err = r.List(ctx, k); err != nil {
			return nil, err
		}
	}
	var reserved []string
	for o := range registry.Each[*flannel.Reservation](objects, flannel.ReservationKind) {
		if o.Spec.Node == node {
			reserved = append(reserved, o.Name)
		}
	}
	if config == nil || !hasLeases(config.(*api.ClusterConfig)) {
		return reserved, nil
	}
	if len(addresses) == 0 {
		n := registry.GetAs[*corev1.Node](objects, api.Node, registry.Key{Name: node})
		if n == nil {
			return nil, fmt.Errorf("node %s: there is no such Node yet: say with --address how others reach it, which the reservation of its subnet must name", node)
		}
		addresses = api.NodeAddresses(n)
	}
	reservation, lease, err := flannel.Plugin{}.Reserve(objects, node, addresses)
	if err != nil {
		return nil, err
	}
	say := func(k *registry.Kind, o registry.Object) {
		path, _ := k.Path(r.Prefix(), registry.KeyOf(o))
		value, _ := k.Encode(o)
		fmt.Fprintf(out, "etcdctl put '%s' '%s'\n", path, value)
	}
	if !slices.Contains(reserved, reservation.Name) {
		reserved = append(reserved, reservation.Name)
	}
	for _, name := range reserved {
		want := &flannel.Reservation{Spec: reservation.Spec}
		want.Name = name
		had := registry.GetAs[*flannel.Reservation](objects, flannel.ReservationKind, registry.KeyOf(want))
		switch {
		case had != nil && had.Spec == want.Spec:
			continue
		case print:
		case had == nil:
			_, err = r.Create(ctx, flannel.ReservationKind, want)
		default:
			want.ResourceVersion = had.ResourceVersion
			_, err = r.Update(ctx, flannel.ReservationKind, want)
		}
		if err != nil {
			return nil, err
		}
		say(flannel.ReservationKind, want)
	}
	if lease != nil {
		if !print {
			if _, err = r.Create(ctx, flannel.LeaseKind, lease); err != nil {
				return nil, err
			}
		}
		say(flannel.LeaseKind, lease)
	}
	return reserved, nil
}

func newEtcdRevoke(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke (node NAME... | controller | admin | view)",
		Short: "Take a user and its role away",
		Long: `revoke deletes users and their roles from etcd, and what is reserved for a node
of flannel's. Objects stay: delete the Node with weft delete node NAME.`,
		Example: `  weft etcd revoke node node4
  weft etcd revoke view --print`,
		Args:      argsBetween("node and NAMEs, controller, admin or view", 1, math.MaxInt),
		ValidArgs: []string{"node", "controller", "admin", "view"},
	}
	c.AddFlags(cmd)
	print := cmd.Flags().Bool("print", false, printUsage)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkAccounts(args); err != nil {
			return err
		}
		r, err := c.openEtcd(cmd.Context())
		if err != nil {
			return err
		}
		defer r.Close()
		out := &told{out: cmd.OutOrStdout(), print: *print}
		names := args[1:]
		for i, node := range names {
			names[i] = nodeAccount + node
			objects, _, err := r.List(cmd.Context(), flannel.ReservationKind)
			if err != nil {
				return err
			}
			for _, o := range objects {
				if o.(*flannel.Reservation).Spec.Node != node {
					continue
				}
				path, _ := flannel.ReservationKind.Path("", registry.KeyOf(o))
				if !*print {
					if err := r.Delete(cmd.Context(), flannel.ReservationKind, registry.KeyOf(o), ""); err != nil && !errors.Is(err, registry.ErrNotFound) {
						return err
					}
				}
				fmt.Fprintf(out, "etcdctl del '%s'\n", path)
			}
		}
		if args[0] != "node" {
			a, err := accountNamed("", args[0])
			if err != nil {
				return err
			}
			names = []string{a.Name}
		}
		var steps []etcd.Step
		for _, name := range names {
			removal, err := r.Removal(cmd.Context(), name)
			if err != nil {
				return err
			}
			steps = append(steps, removal...)
		}
		return carryOut(cmd.Context(), r, out, steps)
	}
	return cmd
}

func newEtcdList(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show Weft's users and roles, and what is missing",
		Long: `list shows who has a user and a role of Weft's in etcd, which nodes have none, and
which belong to nodes that are no more, and who may do more by another role, which
grant takes away. The exit code is 1 if anything is missing, left over or more. Where
authentication is off, which it says, and nobody has a user, nothing is missing.`,
		Example: "  weft etcd list",
		Args:    noArgs,
	}
	c.AddFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := c.openEtcd(cmd.Context())
		if err != nil {
			return err
		}
		defer r.Close()
		have, err := r.Accounts(cmd.Context(), accountPrefix)
		if err != nil {
			return err
		}
		nodes, _, err := r.List(cmd.Context(), api.Node)
		if err != nil {
			return err
		}
		out, wrong := cmd.OutOrStdout(), false
		on, err := r.Authenticates(cmd.Context())
		if err != nil {
			return err
		}
		if !on {
			fmt.Fprintln(out, "Authentication is off: whoever reaches etcd may write every key, and users count for nothing. Where machines that reach it are not trusted, give all their users and turn it on: weft etcd enable-auth")
			if len(have) == 0 {
				return nil
			}
		}
		for _, name := range have {
			node, ofNode := strings.CutPrefix(name, nodeAccount)
			left := ofNode && !slices.ContainsFunc(nodes, func(o registry.Object) bool { return o.GetName() == node })
			var others []string
			if grantee(name) != "" {
				if others, err = r.OtherRoles(cmd.Context(), name); err != nil {
					return err
				}
			}
			switch {
			case left:
				fmt.Fprintf(out, "%s  there is no Node %s: weft etcd revoke node %s\n", name, node, node)
			case len(others) > 0:
				fmt.Fprintf(out, "%s  has also the role %s: weft etcd grant %s\n", name, strings.Join(others, " and "), grantee(name))
			default:
				fmt.Fprintln(out, name)
			}
			wrong = wrong || left || len(others) > 0
		}
		for _, o := range nodes {
			if !slices.Contains(have, nodeAccount+o.GetName()) {
				fmt.Fprintf(out, "%s%s  is missing: weft etcd grant node %s\n", nodeAccount, o.GetName(), o.GetName())
				wrong = true
			}
		}
		if !slices.Contains(have, controllerAccount) {
			fmt.Fprintf(out, "%s  is missing: weft etcd grant controller\n", controllerAccount)
			wrong = true
		}
		if wrong {
			return exitError{code: 1}
		}
		return nil
	}
	return cmd
}

func newEtcdEnableAuth(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "enable-auth",
		Short: "Have etcd ask everyone who they are",
		Long: `enable-auth makes etcd's user root if it is not there, and turns authentication on.
From then on who shows neither a certificate nor a password of a user gets nothing:
give agents, controllers and people their users first. It refuses to turn it on
where nobody could log in as root afterwards, and, without --force, where agents
or controllers run for which there is no user. Whether those that run were started
with their users' passwords or certificates it cannot see: it names them, and which
was not is locked out until it is started again with its own.`,
		Example: `  weft etcd enable-auth --password-file root.password
  weft etcd enable-auth --password-file root.password --print`,
		Args: noArgs,
	}
	c.AddFlags(cmd)
	password := passwordFlag(cmd, "`FILE` with the password to give root; without, this connection must show a client certificate with the common name root")
	force := cmd.Flags().Bool("force", false, "turn it on also where agents or controllers run for which weft etcd grant has made no user, and which have one of your own making; and in a lab, whose agents log in as nobody")
	print := cmd.Flags().Bool("print", false, printUsage)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		secret, err := password()
		if err != nil {
			return err
		}
		r, err := c.openEtcd(cmd.Context())
		if err != nil {
			return err
		}
		defer r.Close()
		steps, err := r.Authentication(cmd.Context(), secret)
		if err != nil {
			return err
		}
		if l := c.lab(); l != nil && len(steps) > 0 && !l.LogsIn() && !*force && !*print {
			return errors.New("the agents and controllers of this lab log in as nobody, and so does weft lab: all of them would get nothing from etcd any more; say --force to turn it on all the same")
		}
		if err := checkNobodyIsCutOff(cmd.Context(), r, *force, cmd.ErrOrStderr()); err != nil {
			return err
		}
		if err := carryOut(cmd.Context(), r, &told{out: cmd.OutOrStdout(), print: *print}, steps); err != nil || *print || len(steps) == 0 {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "# etcd asks from now on: commands need --etcd-user and --etcd-password-file, or WEFT_ETCD_USER and WEFT_ETCD_PASSWORD, or a certificate\n# as root it is turned off again with: etcdctl auth disable --user root")
		return err
	}
	return cmd
}

// checkNobodyIsCutOff says which agents and controllers run for which there is no
// user of etcd, where it does not ask yet who they are, and warns the others: whether
// those that run log in, etcd does not tell. With force, it warns all of them.
func checkNobodyIsCutOff(ctx context.Context, r *etcd.Registry, force bool, errs io.Writer) error {
	if on, err := r.Authenticates(ctx); on || err != nil {
		return err
	}
	held, err := r.Holders(ctx, "")
	if err != nil {
		return err
	}
	users, err := r.Users(ctx)
	if err != nil {
		return err
	}
	nodes, controllers := withoutUser(held, users)
	if who := agentsAndControllers(nodes, controllers); len(who) > 0 && !force {
		var first []string
		if len(nodes) > 0 {
			first = append(first, "weft etcd grant node "+strings.Join(nodes, " "))
		}
		if len(controllers) > 0 {
			first = append(first, "weft etcd grant controller")
		}
		return fmt.Errorf("there is no user of etcd for %s, which would get nothing from etcd any more: give them one first with: %s (--password-file for those without a certificate), and start them with it; or say --force if they have users of your own making",
			strings.Join(who, " and for "), strings.Join(first, " && "))
	}
	if who := agentsAndControllers(withoutUser(held, nil)); len(who) > 0 {
		printable.Fprintf(errs, "warning: %s run, and etcd does not tell whether they log in: which of them was started without its user's password or certificate gets nothing from etcd once authentication is on; start it again with --etcd-user and --etcd-password-file, or --etcd-cert and --etcd-key\n",
			strings.Join(who, " and "))
	}
	return nil
}

// agentsAndControllers names agents by their nodes, and controllers.
func agentsAndControllers(nodes, controllers []string) (who []string) {
	if len(nodes) > 0 {
		who = append(who, "the agents of "+printable.Few(nodes, 0))
	}
	if len(controllers) > 0 {
		who = append(who, "the controllers "+printable.Few(controllers, 0))
	}
	return who
}

// withoutUser returns of those that hold leases the nodes and the controllers for
// which there is no user of etcd, in order.
func withoutUser(held map[string]string, users []string) (nodes, controllers []string) {
	for lease, holder := range held {
		if node, ofNode := strings.CutPrefix(lease, api.NodeLease("")); ofNode {
			node = strings.TrimSuffix(node, api.RivalSuffix)
			if !slices.Contains(users, nodeAccount+node) {
				nodes = append(nodes, node)
			}
		} else if name, living := strings.CutPrefix(lease, api.LivingControllerPrefix); (living || lease == api.ControllerLease) && !slices.Contains(users, controllerAccount) {
			if !living {
				name = holder
			}
			controllers = append(controllers, name)
		}
	}
	slices.Sort(nodes)
	slices.Sort(controllers)
	return slices.Compact(nodes), slices.Compact(controllers)
}
