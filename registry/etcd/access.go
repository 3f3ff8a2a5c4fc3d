package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Permission says what a role may do with keys of etcd: read them, or write and
// delete them as well.
type Permission struct {
	// Key is the key, or what all keys begin with if Prefix is set.
	Key    string
	Prefix bool
	Write  bool
}

func (p Permission) end() string {
	if p.Prefix {
		return clientv3.GetPrefixRangeEnd(p.Key)
	}
	return ""
}

func (p Permission) kind() clientv3.PermissionType {
	if p.Write {
		return clientv3.PermissionType(clientv3.PermReadWrite)
	}
	return clientv3.PermissionType(clientv3.PermRead)
}

// Account is a user of etcd, and the role of the same name that only it has. A
// client certificate whose common name is the user's needs no password.
type Account struct {
	Name        string
	Permissions []Permission
}

// Step is a change to etcd's users and roles.
type Step struct {
	words []string
	do    func(context.Context, *clientv3.Client) error
}

// String is the command of etcdctl that does the same. A password is not part of
// it; etcdctl asks for it.
func (s Step) String() string {
	words := []string{"etcdctl"}
	for _, w := range s.words {
		if strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("/-_.:=", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// Prefix is what Weft's own keys begin with.
func (r *Registry) Prefix() string { return r.config.Prefix }

// LeaseKey is where the holder of a lease of that name is, in an etcd whose keys
// of Weft's begin with prefix.
func LeaseKey(prefix, name string) string { return prefix + "/leases/" + name }

// errNotRoot says that a user may not change users and roles.
var errNotRoot = errors.New("only a user with etcd's role root may see and change users and roles; log in as that, as with --etcd-user root")

// administer makes a call about users and roles. It reports whether what the call
// asked for is there.
func (r *Registry) administer(ctx context.Context, call func(context.Context, *clientv3.Client) error) (found bool, err error) {
	found = true
	var refusal error
	err = r.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		err := call(ctx, c)
		switch known := rpctypes.Error(err); {
		case errors.Is(known, rpctypes.ErrRoleNotFound), errors.Is(known, rpctypes.ErrUserNotFound):
			found = false
			return nil
		case errors.Is(known, rpctypes.ErrPermissionDenied), errors.Is(known, rpctypes.ErrUserEmpty):
			refusal = errNotRoot
			return nil
		case errors.Is(err, errNoPassword):
			refusal = err
			return nil
		}
		return err
	})
	return found, errors.Join(err, refusal)
}

// Missing returns the steps that are left until an account is there and may do
// what it says, and nothing else. With a password, a user that is there is made
// anew, and cannot log in meanwhile; without, a new user has none and needs a
// certificate.
func (r *Registry) Missing(ctx context.Context, a Account, password string) ([]Step, error) {
	var steps []Step
	add := func(do func(context.Context, *clientv3.Client) error, words ...string) {
		steps = append(steps, Step{words, do})
	}
	var role *clientv3.AuthRoleGetResponse
	found, err := r.administer(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		role, err = c.RoleGet(ctx, a.Name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("role %s: %w", a.Name, err)
	}
	var has []*authpb.Permission
	if found {
		has = role.Perm
	} else {
		add(func(ctx context.Context, c *clientv3.Client) error { _, err := c.RoleAdd(ctx, a.Name); return err }, "role", "add", a.Name)
	}
	for _, p := range has {
		key, end := string(p.Key), string(p.RangeEnd)
		if slices.ContainsFunc(a.Permissions, func(want Permission) bool { return want.Key == key && want.end() == end }) {
			continue
		}
		words := []string{"role", "revoke-permission", a.Name, key}
		if end != "" {
			words = append(words, end)
		}
		add(func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.RoleRevokePermission(ctx, a.Name, key, end)
			return err
		}, words...)
	}
	for _, want := range a.Permissions {
		if slices.ContainsFunc(has, func(p *authpb.Permission) bool {
			return string(p.Key) == want.Key && string(p.RangeEnd) == want.end() && clientv3.PermissionType(p.PermType) == want.kind()
		}) {
			continue
		}
		kind := "read"
		if want.Write {
			kind = "readwrite"
		}
		words := []string{"role", "grant-permission", a.Name, kind, want.Key}
		if want.Prefix {
			words = append(words, "--prefix")
		}
		add(func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.RoleGrantPermission(ctx, a.Name, want.Key, want.end(), want.kind())
			return err
		}, words...)
	}

	roles, found, err := r.rolesOf(ctx, a.Name)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return append(steps, addUser(a.Name, password), grantRole(a.Name)), nil
	case password != "":
		// A user that was made without a password never gets one, etcd does not say
		// so, nor which users these are. What other roles it had go with it.
		return append(steps, deleteUser(a.Name), addUser(a.Name, password), grantRole(a.Name)), nil
	}
	if !slices.Contains(roles, a.Name) {
		steps = append(steps, grantRole(a.Name))
	}
	for _, role := range roles {
		if role != a.Name {
			steps = append(steps, Step{[]string{"user", "revoke-role", a.Name, role},
				func(ctx context.Context, c *clientv3.Client) error {
					_, err := c.UserRevokeRole(ctx, a.Name, role)
					return err
				}})
		}
	}
	return steps, nil
}

// rolesOf returns the roles of a user, in alphabetical order, and whether there is
// such a user.
func (r *Registry) rolesOf(ctx context.Context, name string) (roles []string, found bool, err error) {
	found, err = r.administer(ctx, func(ctx context.Context, c *clientv3.Client) error {
		user, err := c.UserGet(ctx, name)
		if err == nil {
			roles = user.Roles
		}
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("user %s: %w", name, err)
	}
	return roles, found, nil
}

// OtherRoles returns the roles that a user has beside that of its own name, in
// alphabetical order: by these it may do more than its Account says. A user that
// is not there has none.
func (r *Registry) OtherRoles(ctx context.Context, name string) ([]string, error) {
	roles, _, err := r.rolesOf(ctx, name)
	return slices.DeleteFunc(roles, func(role string) bool { return role == name }), err
}

// addUser makes a user. Without a password it needs a certificate.
func addUser(name, password string) Step {
	if password == "" {
		return Step{[]string{"user", "add", name, "--no-password"}, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.UserAddWithOptions(ctx, name, "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		}}
	}
	return Step{[]string{"user", "add", name}, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserAdd(ctx, name, password)
		return err
	}}
}

func deleteUser(name string) Step {
	return Step{[]string{"user", "delete", name}, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserDelete(ctx, name)
		return err
	}}
}

// grantRole gives a user the role of its name.
func grantRole(name string) Step {
	return Step{[]string{"user", "grant-role", name, name}, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserGrantRole(ctx, name, name)
		return err
	}}
}

// Removal returns the steps that are left until an account is gone.
func (r *Registry) Removal(ctx context.Context, name string) ([]Step, error) {
	var steps []Step
	_, found, err := r.rolesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if found {
		steps = append(steps, deleteUser(name))
	}
	found, err = r.administer(ctx, func(ctx context.Context, c *clientv3.Client) error { _, err := c.RoleGet(ctx, name); return err })
	if err != nil {
		return nil, fmt.Errorf("role %s: %w", name, err)
	}
	if found {
		steps = append(steps, Step{[]string{"role", "delete", name}, func(ctx context.Context, c *clientv3.Client) error { _, err := c.RoleDelete(ctx, name); return err }})
	}
	return steps, nil
}

// errNoRoot says that nobody could log in as root once etcd asks.
var errNoRoot = errors.New("nobody could log in as root afterwards, who alone may change users and turn authentication off again: " +
	"give root a password (--password-file), or connect with a client certificate of common name root (--etcd-cert, --etcd-key), which an etcd with --client-cert-auth takes for root")

// Authenticates reports whether etcd asks everyone who they are.
func (r *Registry) Authenticates(ctx context.Context) (bool, error) {
	on := true
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		// An etcd that does not ask says so before it looks at the name. No user has
		// an empty one. etcd 3.4 has no request of its own for this.
		_, err := c.Authenticate(ctx, "", "")
		switch known := rpctypes.Error(err); {
		case errors.Is(known, rpctypes.ErrAuthNotEnabled):
			on = false
		case errors.Is(known, rpctypes.ErrAuthFailed), errors.Is(known, rpctypes.ErrUserEmpty):
		default:
			return err
		}
		return nil
	})
	return on, err
}

// rootUser may do anything. Its role of the same name is etcd's own.
const rootUser = "root"

// Authentication returns the steps that are left until etcd asks everyone who
// they are: the user root, with that password if there is one, and then the
// switch. It refuses when nobody could log in as root then: where the user has no
// password given here, the connection must show a certificate that is root's.
func (r *Registry) Authentication(ctx context.Context, password string) ([]Step, error) {
	on, err := r.Authenticates(ctx)
	if err != nil {
		return nil, err
	}
	if !on && password == "" {
		// Whether a user root that is there has a password, etcd does not tell.
		if name, err := r.config.commonName(); err != nil {
			return nil, err
		} else if name != rootUser {
			return nil, errNoRoot
		}
	}
	// The role is etcd's own, and there once a user has it.
	roles, found, err := r.rolesOf(ctx, rootUser)
	if err != nil {
		return nil, err
	}
	var steps []Step
	switch {
	case !found:
		steps = []Step{addUser(rootUser, password), grantRole(rootUser)}
	case password != "" && on:
		steps = []Step{changeRootsPassword(password)} // root cannot be deleted now
	case password != "":
		steps = []Step{deleteUser(rootUser), addUser(rootUser, password), grantRole(rootUser)} // see Missing
	case !slices.Contains(roles, rootUser):
		steps = []Step{grantRole(rootUser)}
	}
	if !on {
		steps = append(steps, Step{[]string{"auth", "enable"}, func(ctx context.Context, c *clientv3.Client) error { _, err := c.AuthEnable(ctx); return err }})
	}
	return steps, nil
}

// errNoPassword says that etcd took a password and did not store it.
var errNoPassword = errors.New("nobody can log in as root with it: root was made without a password, and gets one only where it is made anew, " +
	"for which authentication must be off: turn it off (etcdctl auth disable), and repeat this")

// changeRootsPassword changes root's password where etcd asks who everyone is. It
// fails for a root that was made without one, to which etcd gives none.
func changeRootsPassword(password string) Step {
	return Step{[]string{"user", "passwd", rootUser}, func(ctx context.Context, c *clientv3.Client) error {
		if _, err := c.UserChangePassword(ctx, rootUser, password); err != nil {
			return err
		}
		_, err := c.Authenticate(ctx, rootUser, password)
		if err == nil || ctx.Err() != nil || status.Code(err) == codes.Unavailable {
			return err
		}
		return errNoPassword
	}}
}

// Do does a step. One that somebody else has done meanwhile is done.
func (r *Registry) Do(ctx context.Context, s Step) error {
	_, err := r.administer(ctx, func(ctx context.Context, c *clientv3.Client) error {
		err := s.do(ctx, c)
		switch known := rpctypes.Error(err); {
		case errors.Is(known, rpctypes.ErrUserAlreadyExist), errors.Is(known, rpctypes.ErrRoleAlreadyExist),
			errors.Is(known, rpctypes.ErrPermissionNotGranted), errors.Is(known, rpctypes.ErrRoleNotGranted):
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// Users returns the names of all users.
func (r *Registry) Users(ctx context.Context) ([]string, error) {
	var users *clientv3.AuthUserListResponse
	known, err := r.administer(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		users, err = c.UserList(ctx)
		return err
	})
	if err == nil && !known { // who asks is no user
		err = errNotRoot
	}
	if err != nil {
		return nil, fmt.Errorf("list etcd's users: %w", err)
	}
	return users.Users, nil
}

// Accounts returns the names of all users and roles that begin with a prefix, in
// alphabetical order.
func (r *Registry) Accounts(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	known, err := r.administer(ctx, func(ctx context.Context, c *clientv3.Client) error {
		users, err := c.UserList(ctx)
		if err != nil {
			return err
		}
		roles, err := c.RoleList(ctx)
		if err != nil {
			return err
		}
		for _, name := range append(users.Users, roles.Roles...) {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		return nil
	})
	if err == nil && !known { // who asks is no user
		err = errNotRoot
	}
	slices.Sort(names)
	return slices.Compact(names), err
}
