// Command weft-traffic is what pods of a test run: a server of package traffic,
// the load on some, and single questions to them.
//
//	weft-traffic serve
//	weft-traffic load -rate 1000 10.244.1.5:7000 [fd00:10:244:1::5]:7000
//	weft-traffic lookups -rate 100 web.default.svc.cluster.local
//	weft-traffic ask tcp://10.244.1.5:7000 udp://10.244.1.5:7000
//	weft-traffic stream -give 10.244.1.5:7000
//
// Answers are lines of JSON on standard output. load and lookups print a report every
// second until they are told to end.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weftnet/weft/test/kubernetes/traffic"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("what? serve, load, lookups, ask or stream")
	}
	out := json.NewEncoder(os.Stdout)
	f := flag.NewFlagSet(args[0], flag.ExitOnError)
	timeout := f.Duration("timeout", 5*time.Second, "`TIME` after which a request is lost")
	switch args[0] {
	case "serve":
		port := f.Uint("port", 7000, "TCP and UDP `PORT`")
		http := f.Uint("http", 7001, "`PORT` for HTTP, 0 for none")
		f.Parse(args[1:])
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		return traffic.Server{Name: name, Port: uint16(*port), HTTP: uint16(*http)}.Run(ctx)
	case "load":
		l := traffic.Load{}
		f.IntVar(&l.Rate, "rate", 1000, "`REQUESTS` a second, in all")
		f.IntVar(&l.Held, "held", 0, "`CONNECTIONS` to each server that stay open; 0 means 2")
		f.Parse(args[1:])
		l.Timeout = *timeout
		for _, a := range f.Args() {
			to, err := netip.ParseAddrPort(a)
			if err != nil {
				return err
			}
			l.Targets = append(l.Targets, to)
		}
		return reporting(out, func(report func(traffic.Report)) error { return l.Run(ctx, report) })
	case "lookups":
		l := traffic.Lookups{}
		f.IntVar(&l.Rate, "rate", 100, "`LOOK-UPS` a second, in all")
		f.Parse(args[1:])
		l.Timeout, l.Names = *timeout, f.Args()
		return reporting(out, func(report func(traffic.Report)) error { return l.Run(ctx, report) })
	case "ask":
		f.Parse(args[1:])
		return out.Encode(traffic.Ask(*timeout, f.Args()...))
	case "stream":
		b := traffic.Bulk{}
		f.BoolVar(&b.Give, "give", false, "from the server, not to it")
		f.Int64Var(&b.Bytes, "bytes", 2_000_000, "`BYTES` that are timed together")
		f.Float64Var(&b.Until, "until", 0, "again until they go at no more than this `RATE` in bit/s")
		f.Int64Var(&b.Most, "most", 500_000_000, "`BYTES` after which to stop all the same")
		f.Parse(args[1:])
		b.Timeout = *timeout
		var err error
		if b.To, err = netip.ParseAddrPort(f.Arg(0)); err != nil {
			return err
		}
		moved, err := b.Move()
		if err != nil {
			return err
		}
		return out.Encode(moved)
	}
	return fmt.Errorf("%q: it is serve, load, lookups, ask or stream", args[0])
}

// reporting runs what reports, and writes its reports. Who reads them must not hold it up: what
// cannot be written in a second is left out.
func reporting(out *json.Encoder, run func(report func(traffic.Report)) error) error {
	reports := make(chan traffic.Report, 1)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for r := range reports {
			out.Encode(r)
		}
	}()
	err := run(func(r traffic.Report) {
		if r.Last {
			reports <- r
			return
		}
		select {
		case reports <- r:
		default:
		}
	})
	close(reports)
	<-written
	return err
}
