// Command pause is the first container of a pod: it holds the pod's namespaces
// and reaps orphans when the pod shares its PID namespace, until it is told to
// end.
package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// One pending signal of each kind is enough: each child's end is found by
	// asking, not by counting.
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	for {
		select {
		case <-end:
			return
		case <-children:
			for {
				pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
				if pid <= 0 && !errors.Is(err, syscall.EINTR) {
					break
				}
			}
		}
	}
}
