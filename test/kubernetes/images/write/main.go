// Command write writes the images that the test cluster runs, those that are
// not there yet, and prints the paths of all.
//
//	write BIN DIRECTORY
//
// BIN holds the programs of the cluster, built by test/kubernetes/programs and
// test/kubernetes/deps.sh. It runs inside Weft's source tree.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/weftnet/weft/test/kubernetes/images"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: write BIN DIRECTORY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	paths, err := images.Write(ctx, os.Args[1], os.Args[2])
	for _, path := range paths {
		fmt.Println(path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "write:", err)
		os.Exit(1)
	}
}
