// Package keeper keeps the sockets of a node's name server open while the server itself crashes,
// is started again, or is replaced by another version. Queries that come meanwhile wait in the
// sockets' buffers, and those that a crashed server had read already in memory that the keeper has
// for them: the next server gets it, and no other, so that no two have it at a time. What is in it
// the keeper does not look at.
//
// A Keeper starts the server as a process of its own and speaks with it over a Unix socket, the
// first file behind the three standard ones; the next one is the memory. The server says at which addresses it is to be
// reached, as its records have them; the keeper opens the sockets and hands them over. It asks
// the server again and again whether it still works. One that ends is started again at once, and
// ever later if it keeps ending; one that does not answer is killed first.
//
// At its socket the keeper tells who asks how things are (Ask), and hands over to the next
// keeper, which is started beside it, as during an upgrade. That one takes the sockets, has a
// server of its own, and says so once that serves; until then both servers read the same
// queues. The one before then ends its server, and stands by: if the other goes, it begins
// again. So it does not matter which of the two is ended first, or which fails. Nor does it matter
// which is found first: one that has no sockets, and finds another at its path, takes from that; and
// one that has them takes the path from another there that has none.
//
// The process is on every node for as long as the node lives. So it depends on the standard
// library and golang.org/x/sys/unix alone.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what a keeper keeps.
type Options struct {
	// Socket is where it is asked, and where the next keeper finds it.
	Socket string
	// Own is a socket at which this keeper alone is asked, whoever is at Socket; none if it is
	// empty. No other keeper may have the same.
	Own string
	// Port is where it listens at each address; 0 lets the kernel choose.
	Port uint16
	// Server is the server's program with its arguments. It also gets the flag
	// --keeper-file=3, which says where its end of the conversation is. That file 4 is memory its
	// seals say: a program that does not know of it need not be told.
	Server []string
	// Every is how often the server is asked whether it works; 2 s if 0.
	Every time.Duration
	// Patience is how many of these questions in a row it may leave unanswered; 3 if 0.
	Patience int
	// Log gets what happens; slog's default if nil.
	Log *slog.Logger
}

const (
	// grace is how long a server has to answer what it has read when it is to end.
	grace = 5 * time.Second
	// steady is how long a server has to live so that its end counts as the first one.
	steady = 10 * time.Second
	// firstPause and lastPause are how long the second and all later servers in a row that end
	// sooner are waited with. The first is followed at once.
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	// tryAgain is when what failed is tried again: to open sockets, and to take over.
	tryAgain = 250 * time.Millisecond
	// nextTime is how long a keeper at the path has to say which sockets it has. Meanwhile nothing else is
	// done here, so that it is less than who asks this one waits for.
	nextTime = time.Second
	// absence is how long a server may be away and the node still count as served, as queries
	// wait for so long.
	absence = 2 * time.Second
)

// role is what a keeper does.
type role int

const (
	// fresh has to find out whether there is another.
	fresh role = iota
	// taking has the sockets of another that serves them still.
	taking
	// owning is the one that is asked.
	owning
	// standing by is one whose sockets another has.
	standingBy
)

// Keeper keeps sockets. Its fields belong to the goroutine in which Run is.
type Keeper struct {
	o Options
	// events are what other goroutines have to say, done by Run's.
	events chan func()

	role    role
	sockets map[netip.Addr]pair
	// wanted are the addresses that a server named last, of which there may be none; nil if no
	// server has said yet.
	wanted []netip.Addr
	// refused are why the sockets of some of them are not open.
	refused map[netip.Addr]error

	server  *server
	crashes int
	// memory is what all its servers have for queries, one after the other; nil while there is none.
	memory *os.File
	// again is when the next server is due, and ended why there is none.
	again time.Time
	ended string
	// served is when a server served last.
	served time.Time

	listener *net.UnixListener
	// at says which file the listener's socket is.
	at os.FileInfo
	// before is the keeper from which this one took, and after the one that takes from it; nil
	// where there is none, or none any more.
	before, after *net.UnixConn
	// waits is why it is not known yet whose turn it is.
	waits error
}

// New returns a Keeper.
func New(o Options) *Keeper {
	if o.Every == 0 {
		o.Every = 2 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 3
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Keeper{o: o, events: make(chan func()), sockets: map[netip.Addr]pair{}, refused: map[netip.Addr]error{}}
}

// Run keeps the sockets until ctx ends. Then it ends the server, once that has answered what it
// has read.
func (k *Keeper) Run(ctx context.Context) error {
	// A server dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := os.MkdirAll(dir(k.o.Socket), 0o700); err != nil {
		return fmt.Errorf("make the directory of the socket at which the name server's keeper is asked: %w", err)
	}
	k.events = make(chan func())
	if k.o.Own != "" {
		l, err := listenUnix(k.o.Own)
		if err != nil {
			return fmt.Errorf("make the socket at which this keeper alone is asked: %w", err)
		}
		l.SetUnlinkOnClose(true)
		defer l.Close()
		go k.accept(ctx, l)
	}
	ask := time.NewTicker(k.o.Every)
	defer ask.Stop()
	try := time.NewTimer(0)
	defer try.Stop()
	for {
		select {
		case <-ctx.Done():
			k.end()
			return nil
		case f := <-k.events:
			f()
		case <-ask.C:
			k.question()
			k.republish(ctx)
		case <-try.C:
		}
		try.Reset(k.step(ctx))
	}
}

// do has f done by Run's goroutine, or never if that has ended.
func (k *Keeper) do(ctx context.Context, f func()) bool {
	select {
	case k.events <- f:
		return true
	case <-ctx.Done():
		return false
	}
}

// step does what is due, and returns when there may be something again, though nothing is heard.
func (k *Keeper) step(ctx context.Context) time.Duration {
	next := time.Hour
	if k.role == fresh {
		if k.waits = k.begin(ctx); k.waits != nil {
			next = tryAgain
		}
	}
	if k.role == taking && (k.before == nil || k.serving() || k.idle()) {
		k.own(ctx)
	}
	if k.role == owning && k.listener == nil {
		if k.waits = k.publish(ctx); k.waits != nil {
			next = tryAgain
		}
	}
	if k.role == taking || k.role == owning {
		k.open()
		if len(k.refused) > 0 {
			next = min(next, tryAgain)
		}
		if k.server == nil {
			wait := time.Until(k.again)
			if wait <= 0 {
				k.start(ctx)
				wait = max(time.Until(k.again), time.Millisecond)
			}
			if k.server == nil {
				next = min(next, wait)
			}
		}
		k.hand()
	}
	if k.serving() {
		k.served = time.Now()
	}
	return next
}

// begin finds out whether there is another keeper, and takes its sockets.
func (k *Keeper) begin(ctx context.Context) error {
	c, err := dial(ctx, k.o.Socket)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		k.role = owning
		return nil
	}
	if err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(askTime))
	err = send(c, message{Take: true})
	var m message
	var files []int
	if err == nil {
		m, files, err = receive(c)
	}
	if err == nil && m.Sockets == nil {
		err = errors.New("it does not hand its sockets over")
		if m.State != nil {
			err = fmt.Errorf("%w: %s", err, m.State.Problem)
		}
	}
	if err != nil {
		c.Close()
		return fmt.Errorf("take over from the keeper at %s: %w", k.o.Socket, err)
	}
	c.SetReadDeadline(time.Time{})
	for i, at := range *m.Sockets {
		k.sockets[at.Addr()] = pair{files[2*i], files[2*i+1], at}
		// The node's limit may be another one by now. If that fails it has the room that it had.
		makeRoom(files[2*i])
	}
	k.o.Log.Info("took the sockets of the keeper before", "addresses", *m.Sockets)
	k.role, k.before = taking, c
	if k.server != nil {
		k.server.handed = false // it may be there already, and has none of these
	}
	k.follow(ctx, c)
	return nil
}

// follow hears what another keeper says, until it is gone.
func (k *Keeper) follow(ctx context.Context, c *net.UnixConn) {
	go func() {
		for {
			m, files, err := receive(c)
			closeAll(files)
			if !k.do(ctx, func() { k.heard(ctx, c, m, err) }) || err != nil {
				return
			}
		}
	}()
}

// heard is what another keeper said, or that it is gone.
func (k *Keeper) heard(ctx context.Context, c *net.UnixConn, m message, err error) {
	switch {
	case err != nil && c == k.before:
		c.Close()
		k.before = nil
	case err != nil && c == k.after:
		c.Close()
		k.after = nil
		if k.role == standingBy {
			k.o.Log.Info("the keeper that took over is gone")
			k.role = fresh
		} else {
			k.republish(ctx)
		}
	case m.Serving && c == k.after && k.role == owning:
		k.o.Log.Info("handed over to the next keeper")
		// It has its own socket at the path by now.
		k.listener.Close()
		k.listener, k.at = nil, nil
		k.role, k.wanted, k.served = standingBy, nil, time.Time{}
		clear(k.refused)
		if k.server != nil {
			k.server.stop()
		}
		k.closeSockets()
	}
}

// own ends the work of the keeper before.
func (k *Keeper) own(ctx context.Context) {
	if k.waits = k.publish(ctx); k.waits != nil {
		return
	}
	k.role = owning
	if k.before == nil {
		return
	}
	if err := send(k.before, message{Serving: true}); err != nil {
		// It is gone or going; of that its conversation tells.
		k.o.Log.Info("the keeper before does not hear that this one serves", "error", err)
	}
}

// publish has the keeper asked at its socket from now on, in the place of whoever was before.
func (k *Keeper) publish(ctx context.Context) error {
	beside := k.o.Socket + ".new"
	l, err := listenUnix(beside)
	if err != nil {
		return err
	}
	err = os.Rename(beside, k.o.Socket)
	if err == nil {
		k.at, err = os.Lstat(k.o.Socket)
	}
	if err != nil {
		l.Close()
		return err
	}
	k.listener = l
	go k.accept(ctx, l)
	return nil
}

// listenUnix listens at a path, in the place of what a keeper that was killed may have left there.
func listenUnix(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// published reports whether the socket at the path is this keeper's own.
func (k *Keeper) published() bool {
	info, err := os.Lstat(k.o.Socket)
	return err == nil && k.at != nil && os.SameFile(info, k.at)
}

// republish has the socket made anew where what is at the path is neither this keeper's own nor
// that of another that lives. Where another is asked there, one of the two has the sockets alone: if
// that is the other one, this one begins anew, and takes them from there. If it is this one, it takes
// the path, so that the other one does the same. Two that begin at once come to that.
func (k *Keeper) republish(ctx context.Context) {
	if k.listener == nil || k.published() {
		return
	}
	c, err := net.DialTimeout("unixpacket", k.o.Socket, askTime)
	if err == nil {
		c.Close()
		if k.role != owning || k.after != nil {
			return
		}
		if len(k.sockets) == 0 {
			k.o.Log.Info("another keeper is asked in the place of this one, which takes over from it")
			k.role = fresh
		} else if other, err := k.other(ctx); err != nil || len(other.Addresses) > 0 {
			return
		} else {
			k.o.Log.Info("another keeper is asked in the place of this one, and has no sockets: this one is asked again")
		}
	}
	k.listener.Close()
	k.listener, k.at = nil, nil
}

// other asks the keeper that is at the path how it is.
func (k *Keeper) other(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, nextTime)
	defer cancel()
	s, _, err := ask(ctx, k.o.Socket)
	return s, err
}

// accept speaks with whoever asks.
func (k *Keeper) accept(ctx context.Context, l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(tryAgain)
			continue
		}
		go k.speak(ctx, c)
	}
}

// speak hears one question, and answers it.
func (k *Keeper) speak(ctx context.Context, c *net.UnixConn) {
	keep := false
	defer func() {
		if !keep {
			c.Close()
		}
	}()
	if them, err := credentials(c); err != nil || int(them.Uid) != os.Geteuid() {
		return
	}
	c.SetReadDeadline(time.Now().Add(askTime))
	m, files, err := receive(c)
	closeAll(files)
	if err != nil {
		return
	}
	c.SetReadDeadline(time.Time{})
	answered := make(chan struct{})
	if k.do(ctx, func() {
		defer close(answered)
		switch {
		case m.Ask:
			send(c, message{State: new(k.state())})
		case m.Take:
			keep = k.give(ctx, c)
		}
	}) {
		<-answered
	}
}

// give hands the sockets over, and reports whether it did.
func (k *Keeper) give(ctx context.Context, c *net.UnixConn) bool {
	refuse := ""
	switch {
	case k.role != owning:
		refuse = "it serves no more"
	case k.after != nil:
		refuse = "another takes them already"
	}
	if refuse != "" {
		send(c, message{State: &State{Problem: refuse}})
		return false
	}
	at, files := k.all()
	if err := send(c, message{Sockets: &at}, files...); err != nil {
		return false
	}
	k.o.Log.Info("handing over to the next keeper", "addresses", at)
	k.after = c
	k.follow(ctx, c)
	return true
}

// all returns the addresses of all sockets, and these.
func (k *Keeper) all() (at []netip.AddrPort, files []int) {
	at = []netip.AddrPort{}
	for _, a := range slices.SortedFunc(maps.Keys(k.sockets), netip.Addr.Compare) {
		p := k.sockets[a]
		at = append(at, p.at)
		files = append(files, p.udp, p.tcp)
	}
	return at, files
}

// open opens the sockets that are wanted and not there, and closes those that are there and not
// wanted.
func (k *Keeper) open() {
	if k.wanted == nil {
		return
	}
	var closed, opened []netip.AddrPort
	var files []int
	for a, p := range k.sockets {
		if !slices.Contains(k.wanted, a) {
			p.close()
			delete(k.sockets, a)
			closed = append(closed, p.at)
		}
	}
	clear(k.refused)
	for _, a := range k.wanted {
		if _, ok := k.sockets[a]; ok {
			continue
		}
		p, err := listen(a, k.o.Port)
		if err != nil {
			k.refused[a] = err
			continue
		}
		k.sockets[a] = p
		opened = append(opened, p.at)
		files = append(files, p.udp, p.tcp)
	}
	if len(closed)+len(opened) > 0 {
		k.o.Log.Info("addresses changed", "opened", opened, "closed", closed)
		if k.server != nil && k.server.handed {
			k.server.say(message{Sockets: &opened, Close: closed}, files...)
		}
	}
}

func (k *Keeper) closeSockets() {
	for _, p := range k.sockets {
		p.close()
	}
	clear(k.sockets)
}

// serving reports whether the server reads all sockets that there are. An address that is
// refused takes nothing from the others.
func (k *Keeper) serving() bool {
	if k.server == nil || k.server.report == nil || len(k.sockets) == 0 {
		return false
	}
	for _, p := range k.sockets {
		if !slices.Contains(k.server.report.Serves, p.at) {
			return false
		}
	}
	return true
}

// idle reports whether the server says that there is no address at which to serve, as where
// pods answer for names.
func (k *Keeper) idle() bool {
	return k.server != nil && k.server.report != nil && k.wanted != nil && len(k.wanted)+len(k.sockets) == 0
}

// state says how things are.
func (k *Keeper) state() State {
	s := State{Serving: k.serving() || len(k.sockets) > 0 && time.Since(k.served) < absence, Idle: k.idle(), StandsBy: k.role == standingBy}
	s.Addresses, _ = k.all()
	var problems []string
	say := func(p string) {
		if p != "" {
			problems = append(problems, p)
		}
	}
	if k.waits != nil {
		say(k.waits.Error())
	}
	for _, a := range slices.SortedFunc(maps.Keys(k.refused), netip.Addr.Compare) {
		say(k.refused[a].Error())
	}
	switch {
	case k.server == nil:
		say(k.ended)
	case k.server.report == nil:
		say("the server has just been started")
	default:
		if k.server.silent > 1 {
			say("the server does not say whether it works")
		}
		say(k.server.report.Problem)
		switch {
		case k.wanted == nil && len(k.sockets) == 0:
			say("no address is known at which to serve: is the agent running?")
		case len(k.sockets) > 0 && !k.serving():
			say("the server does not read all sockets yet")
		}
	}
	s.Problem = strings.Join(problems, "; ")
	return s
}

// end ends all there is.
func (k *Keeper) end() {
	if k.published() {
		os.Remove(k.o.Socket)
	}
	if k.listener != nil {
		k.listener.Close()
	}
	if k.server != nil {
		k.server.stop()
		k.server.wait()
	}
	if k.memory != nil {
		k.memory.Close()
	}
	k.closeSockets()
	for _, c := range []*net.UnixConn{k.before, k.after} {
		if c != nil {
			c.Close()
		}
	}
}

func dir(path string) string {
	if at := strings.LastIndexByte(path, '/'); at > 0 {
		return path[:at]
	}
	return "."
}
