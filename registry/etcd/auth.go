package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// auth gives requests a token of etcd's authentication. It does what the
// client could do by itself, because the client wants the server to be up when
// it is made, and because it never gets another token from an etcd 3.4 that
// has forgotten the first one in a restart.
type auth struct {
	user, password string
	// state holds what is known; whoever takes it out has the lock.
	state chan authState
}

type authState struct {
	known bool // token holds
	token string
}

func newAuth(user, password string) *auth {
	a := &auth{user: user, password: password, state: make(chan authState, 1)}
	a.state <- authState{}
	return a
}

// authenticate is the one request that must go without a token.
const authenticate = "/etcdserverpb.Auth/Authenticate"

// withToken returns ctx with the token for a request, and the token.
func (a *auth) withToken(ctx context.Context, connection *grpc.ClientConn) (context.Context, string, error) {
	var s authState
	select {
	case s = <-a.state:
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	defer func() { a.state <- s }()
	if !s.known {
		granted, err := etcdserverpb.NewAuthClient(connection).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: a.user, Password: a.password})
		switch {
		case errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled):
			s = authState{known: true}
		case err != nil:
			return nil, "", err
		default:
			s = authState{known: true, token: granted.Token}
		}
	}
	if s.token == "" {
		return ctx, "", nil
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, s.token), s.token, nil
}

// forget makes the next request get another token than this one.
func (a *auth) forget(token string) {
	s := <-a.state
	if s.token == token {
		s = authState{}
	}
	a.state <- s
}

// refused says whether a request failed because of its token. A watch fails
// with ErrPermissionDenied then too.
func refused(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// unary is a grpc.UnaryClientInterceptor. Beside the token it sees to it that
// a request fails when there is no connection to be had, and says why there is
// none; the client would have it wait until its time is over.
func (a *auth) unary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	options = append(options, grpc.WaitForReady(false))
	if a.user == "" || method == authenticate {
		return invoke(ctx, method, request, reply, connection, options...)
	}
	for first := true; ; first = false {
		with, token, err := a.withToken(ctx, connection)
		if err != nil {
			return err
		}
		err = invoke(with, method, request, reply, connection, options...)
		if !refused(err) {
			return err
		}
		a.forget(token)
		if !first {
			return err
		}
	}
}

// stream is a grpc.StreamClientInterceptor.
func (a *auth) stream(ctx context.Context, desc *grpc.StreamDesc, connection *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if a.user != "" {
		with, _, err := a.withToken(ctx, connection)
		if err != nil {
			return nil, err
		}
		ctx = with
	}
	return open(ctx, desc, connection, method, options...)
}

// streamRefused forgets the token if a stream may have failed because of it.
func (a *auth) streamRefused(err error) {
	if a.user == "" || !refused(err) && !errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		return
	}
	<-a.state
	a.state <- authState{}
}
