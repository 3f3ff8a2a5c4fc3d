// Command weft-dns keeps the sockets of a node's name server open, and runs the server,
// weft-dns-server, which it starts again when that ends. Package keeper says how.
//
//	weft-dns [--socket PATH] [--port PORT] [--server PATH] [-- ARGUMENT...]
//	weft-dns --check [--socket PATH]
//
// The arguments are the server's. With --check it asks the keeper that runs in this container,
// and its exit code is 0 if that serves, else 1.
package main

import (
	"context"
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
	check := flag.Bool("check", false, "ask whether the name server serves, and exit 0 if it does")
	flag.Parse()
	if err := run(*socket, *port, *program, *check, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if *check {
			os.Exit(1)
		}
		os.Exit(2)
	}
}

func run(socket string, port uint, program string, check bool, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if check {
		return keeper.Check(ctx, socket)
	}
	if port == 0 || port > 65535 {
		return fmt.Errorf("--port %d: ports are 1 to 65535", port)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return keeper.New(keeper.Options{Socket: socket, Port: uint16(port), Server: append([]string{program}, args...), Log: log}).Run(ctx)
}

// beside returns the path of a program that is installed with this one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}
