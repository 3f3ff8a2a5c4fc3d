// Command weft-dns-server is a node's name server. weft-dns starts it, and gives it its sockets.
// Package server says what it does.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/server"
	"github.com/weftnet/weft/internal/spare"
)

// maxThreads is how many threads answer at once, at most. Each costs memory on all nodes, and
// four answer more than a node's pods ask.
const maxThreads = 4

// settled is how long after it has begun a process needs no more what it needed for that.
const settled = 10 * time.Second

func main() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxThreads {
		runtime.GOMAXPROCS(maxThreads)
	}
	// Records live long and what a query needs does not, so that collecting more often costs
	// little.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	file := flag.Uint("keeper-file", 0, "`NUMBER` of the file by which weft-dns speaks with this server")
	var c server.Config
	flag.StringVar(&c.Records, "records", journal.DefaultPath, "`PATH` of the file in which the agent says what names stand for")
	flag.StringVar(&c.Resolv, "resolv-conf", "/etc/resolv.conf", "`PATH` of the node's resolv.conf, whose servers are asked for all other names")
	flag.StringVar(&c.Domain, "domain", "cluster.local", "`DOMAIN` that is taken for the cluster's until the agent has said which it is")
	flag.StringVar(&c.Metrics, "metrics-listen", "", "`ADDRESS` and port at which to tell metrics; nowhere if empty")
	var level slog.Level
	flag.TextVar(&level, "log-level", slog.LevelInfo, "least `LEVEL` to log: debug, info, warn or error")
	flag.Parse()
	// What CoreDNS's plug-ins log goes the same way.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	if err := run(c, *file, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
}

func run(c server.Config, file uint, args []string) (err error) {
	if file == 0 || len(args) > 0 {
		return fmt.Errorf("weft-dns-server is started by weft-dns: run that")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Keeper, err = keeper.Inherited(uintptr(file)); err != nil {
		return err
	}
	spare.Keep(settled)
	return server.Run(ctx, c)
}
