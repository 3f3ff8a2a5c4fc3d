package images

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// buildPrograms builds into bin the programs that only images have, and returns
// the directory with the sources of Kubernetes.
func buildPrograms(ctx context.Context, bin string) (kubernetes string, err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return "", err
	}
	tree, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	// The module that pins the release of Kubernetes.
	pinned := filepath.Join(tree, "test", "kubernetes", "programs", "kubernetes")
	// Others may build the same, or run what is there.
	fresh, err := os.MkdirTemp(bin, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	for program, from := range map[string]struct{ module, source string }{
		"pause":                  {tree, "./test/kubernetes/images/pause"},
		"regression-issue-74839": {pinned, "k8s.io/kubernetes/test/images/regression-issue-74839"},
	} {
		file := filepath.Join(fresh, program)
		if _, err := goCommand(ctx, from.module, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", file, from.source); err != nil {
			return "", err
		}
		if err := os.Rename(file, filepath.Join(bin, program)); err != nil {
			return "", err
		}
	}
	return goCommand(ctx, pinned, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
}

// goCommand runs the go command in dir and returns what it prints.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	return output(cmd)
}

// applets returns the names of what busybox can be called.
func applets(ctx context.Context) ([]string, error) {
	list, err := output(exec.CommandContext(ctx, "busybox", "--list"))
	return strings.Fields(list), err
}

func output(cmd *exec.Cmd) (string, error) {
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w: %s", strings.Join(cmd.Args, " "), cmd.Dir, err, bytes.TrimSpace(complaint.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
