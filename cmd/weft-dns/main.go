// Command weft-dns keeps the sockets of a node's name server open, and runs the server,
// weft-dns-server, which it starts again when that ends. Package keeper says how.
//
//	weft-dns [--socket PATH] [--own-socket PATH] [--port PORT] [--server PATH] [-- ARGUMENT...]
//	weft-dns --check [--socket PATH]
//	weft-dns --alive --own-socket PATH
//
// The arguments are the server's. With --check it asks the keeper that runs in this container,
// and its exit code is 0 if that serves, or has nothing to, else 1. With --alive its exit code is
// 0 if the keeper whose own socket that is does what is due, also while it waits or stands by.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/weftnet/weft/dns/keeper"
)

func main() {
	// There is little to collect, and what the collector would wait for stays resident.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
	socket := flag.String("socket", keeper.DefaultSocket, "`PATH` of the Unix socket at which the agent and the next weft-dns ask")
	port := flag.Uint("port", 53, "`PORT` to listen at, UDP and TCP")
	program := flag.String("server", beside("weft-dns-server"), "`PATH` of the server's program")
	own := flag.String("own-socket", "", "`PATH` of a Unix socket at which this process alone is asked; none if it is empty")
	check := flag.Bool("check", false, "ask whether the name server serves, and exit 0 if it does")
	alive := flag.Bool("alive", false, "ask whether the keeper at --own-socket does what is due, and exit 0 if it does")
	flag.Parse()
	if err := run(*socket, *own, *port, *program, *check, *alive, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if *check || *alive {
			os.Exit(1)
		}
		os.Exit(2)
	}
}

func run(socket, own string, port uint, program string, check, alive bool, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case check:
		return keeper.Check(ctx, socket)
	case alive && own == "":
		return errors.New("--alive needs --own-socket: say which keeper is asked")
	case alive:
		return keeper.Alive(ctx, own)
	}
	if port == 0 || port > 65535 {
		return fmt.Errorf("--port %d: ports are 1 to 65535", port)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return keeper.New(keeper.Options{Socket: socket, Own: own, Port: uint16(port), Server: append([]string{program}, args...), Log: log}).Run(ctx)
}

// beside returns the path of a program that is installed with this one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}
