package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/registry"
)

// unavailable wraps ErrUnavailable and names the API server.
func (r *Registry) unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: API server at %s: %w", registry.ErrUnavailable, r.where(), fmt.Errorf(format, args...))
}

func (r *Registry) errClosed() error { return r.unavailable("the client was closed") }

// failure returns what a failed call means. ctx is the caller's.
func (r *Registry) failure(ctx context.Context, c *call, err error) error {
	if ended := ctx.Err(); ended != nil {
		if errors.Is(ended, context.Canceled) {
			return ended
		}
		return r.unavailable("no answer in time%s: %w", c.last(), ended)
	}
	if r.ctx.Err() != nil {
		return r.errClosed()
	}
	if refusal, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return r.refused(c, refusal.Status())
	}
	// A call that waits for what a server asked it to wait ends like one that
	// was not answered.
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return r.unavailable("no answer in time%s", c.last())
	}
	return r.unavailable("%s", cause(err))
}

// last says what a call was last answered with, if it was.
func (c *call) last() string {
	if c.code == 0 {
		return ""
	}
	return fmt.Sprintf(" (it last said %d %s)", c.code, http.StatusText(c.code))
}

// cause is what went wrong with a connection.
func cause(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the address is said already
	}
	message := err.Error()
	if strings.Contains(message, "x509:") {
		message += "; is the CA the one that signed its certificate, and is the address in that?"
	}
	return message
}

// refused returns what an API server's refusal means.
func (r *Registry) refused(c *call, s metav1.Status) error {
	said := func(err error) error { return fmt.Errorf("%w: %s", err, s.Message) }
	switch s.Reason {
	case metav1.StatusReasonAlreadyExists:
		return registry.ErrExists
	case metav1.StatusReasonConflict:
		return registry.ErrConflict
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonRequestEntityTooLarge:
		return said(registry.ErrInvalid)
	case metav1.StatusReasonGone, metav1.StatusReasonExpired:
		return registry.ErrCompacted
	case metav1.StatusReasonNotFound:
		return r.notFound(c, s)
	case metav1.StatusReasonForbidden:
		return r.forbidden(c, s)
	case metav1.StatusReasonUnauthorized:
		return r.unavailable("it does not accept the credentials (%s): has the token or certificate expired, or is it that of another cluster?", s.Message)
	}
	if s.Code == http.StatusBadRequest { // from an admission webhook, which may give no reason
		return said(registry.ErrInvalid)
	}
	// A revision that is still to come is that of a server with more history:
	// this one was restored or wiped.
	if hasCause(s, metav1.CauseTypeResourceVersionTooLarge) {
		return registry.ErrCompacted
	}
	message := s.Message
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
				message = cause.Message // as it was sent
			}
		}
	}
	return r.unavailable("%d %s: %s", s.Code, http.StatusText(int(s.Code)), message)
}

func hasCause(s metav1.Status, want metav1.CauseType) bool {
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			if c.Type == want {
				return true
			}
		}
	}
	return false
}

// notFound tells an object that is not there from a resource, or a namespace,
// that is not.
func (r *Registry) notFound(c *call, s metav1.Status) error {
	switch {
	// No part of the API server answered that knows the resource.
	case c.kind == nil || s.Details == nil || s.Details.Name == "" || hasCause(s, metav1.CauseTypeUnexpectedServerResponse):
		if c.kind == nil {
			return r.unavailable("it answers 404: is this the address of an API server?")
		}
		if builtin(c.kind.Group) {
			return r.unavailable("it does not serve %s: is this the address of an API server, and is that of a version that has them?", c.resource)
		}
		return r.unavailable("the CustomResourceDefinition %s.%s, version %s, %w; apply deploy/weft.yaml", c.kind.Plural, c.kind.Group, c.kind.Version, registry.ErrNotInstalled)
	case s.Details.Kind == "namespaces" && c.kind.Namespaced:
		return fmt.Errorf("%w: there is no namespace %s", registry.ErrNotFound, s.Details.Name)
	}
	return registry.ErrNotFound
}

// builtin says whether a group is one of Kubernetes' own, whose kinds need no
// CustomResourceDefinition.
func builtin(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// forbidden tells a missing right from an object that admission refuses.
func (r *Registry) forbidden(c *call, s metav1.Status) error {
	user, lacking := lacks(s.Message)
	if !lacking || c.kind == nil {
		if hasCause(s, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("%w: the namespace %s is being deleted", registry.ErrInvalid, c.namespace)
		}
		return fmt.Errorf("%w: %s", registry.ErrInvalid, s.Message)
	}
	where := ""
	if c.namespace != "" {
		where = " and no Role in namespace " + c.namespace
	}
	return r.unavailable("%s may not %s %s: no ClusterRole%s gives it {apiGroups: [%q], resources: [%q], verbs: [%q]}; deploy/weft.yaml does",
		user, c.verb, c.resource, where, c.kind.Group, c.resource, c.verb)
}

// lacks returns who an API server says has no right to do something, as
// `user "a"`, and whether it says that: admission refuses with the same status.
func lacks(message string) (string, bool) {
	_, rest, found := strings.Cut(message, ` is forbidden: User "`)
	if !found {
		_, rest, found = strings.Cut(message, `forbidden: User "`)
	}
	user, rest, quoted := strings.Cut(rest, `"`)
	return fmt.Sprintf("user %q", user), found && quoted && strings.HasPrefix(rest, " cannot ")
}
