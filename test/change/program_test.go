package change

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// port is where pods answer, TCP and UDP.
const port = 7000

// timeout is when a request counts as lost, answerless when one to somebody who is not
// to answer at all is given up.
const (
	timeout    = 5 * time.Second
	answerless = 300 * time.Millisecond
)

// runProgram runs what the test binary is in pods, and reports whether it is asked for
// something else than tests. What does not end by itself ends with its standard input.
func runProgram(name string, args []string) bool {
	programs := map[string]func(context.Context, []string) error{"serve": serve, "host": serve, "load": load, "ask": ask, "knock": knock}
	f, ok := programs[name]
	if !ok {
		return false
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	if name != "serve" && name != "ask" { // which end with their pods, or by themselves
		go func() {
			io.Copy(io.Discard, os.Stdin)
			end()
		}()
	}
	if err := f(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// serve answers.
func serve(ctx context.Context, _ []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return traffic.Server{Name: name, Port: port}.Run(ctx)
}

// load sends RATE requests a second to ADDRESSES, holding HELD connections to each, and
// prints the last report.
func load(ctx context.Context, args []string) error {
	l := traffic.Load{Timeout: timeout}
	var err error
	if l.Rate, err = strconv.Atoi(args[0]); err != nil {
		return err
	}
	if l.Held, err = strconv.Atoi(args[1]); err != nil {
		return err
	}
	for _, a := range args[2:] {
		to, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		l.Targets = append(l.Targets, netip.AddrPortFrom(to, port))
	}
	var last traffic.Report
	if err := l.Run(ctx, func(r traffic.Report) { last = r }); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(last)
}

// ask puts a question to each of ADDRESSES, by TCP and by UDP, and prints the replies.
func ask(_ context.Context, addresses []string) error {
	return json.NewEncoder(os.Stdout).Encode(traffic.Ask(timeout, servers(addresses)...))
}

func servers(addresses []string) (urls []string) {
	for _, a := range addresses {
		for _, protocol := range []string{"tcp", "udp"} {
			urls = append(urls, protocol+"://"+net.JoinHostPort(a, strconv.Itoa(port)))
		}
	}
	return urls
}

// knock asks each of ADDRESSES again and again, once at least, and prints how often. It
// fails where it gets through.
func knock(ctx context.Context, addresses []string) error {
	for n := 1; ; n++ {
		through := make(chan error, len(addresses))
		for _, a := range addresses {
			go func() {
				c, err := net.DialTimeout("tcp", net.JoinHostPort(a, strconv.Itoa(port)), answerless)
				if err == nil {
					c.Close()
					err = fmt.Errorf("%s %s let a connection in, at attempt %d", time.Now().UTC().Format(time.TimeOnly), a, n)
				} else {
					err = nil
				}
				through <- err
			}()
		}
		for _, r := range traffic.Ask(answerless, servers(addresses)...) {
			if r.Error == "" {
				return fmt.Errorf("%s %s answered, at attempt %d", time.Now().UTC().Format(time.TimeOnly), r.To, n)
			}
		}
		for range addresses {
			if err := <-through; err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			fmt.Println(n)
			return nil
		}
	}
}
