package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weftnet/weft/cni/protocol"
)

const (
	// predecessorTime is how long one may take.
	predecessorTime = 30 * time.Second
	// maxOutput is how much of what it writes is read, in bytes.
	maxOutput = 64 << 10
)

// takeAway has plug-ins that worked after weft-cni, under agents before, take away what they made
// for a container: those that are in one of the directories of path still. They get the request
// as it is in the environment, and their configuration.
func takeAway(configurations []json.RawMessage, path string) *protocol.Error {
	for _, conf := range configurations {
		var plugin struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(conf, &plugin); err != nil || plugin.Type != filepath.Base(plugin.Type) {
			return protocol.Errorf(protocol.InvalidConfig, "predecessors: %q names no plug-in", plugin.Type)
		}
		for _, dir := range filepath.SplitList(path) {
			program := filepath.Join(dir, plugin.Type)
			if _, err := os.Stat(program); err != nil {
				continue
			}
			if err := start(program, conf); err != nil {
				return protocol.Errorf(protocol.IOFailure, "%s, which worked for this container under an earlier agent, does not take away what it made: %v", program, err)
			}
			break
		}
	}
	return nil
}

// start runs a program with an input, and says why it failed.
func start(program string, input []byte) error {
	stdin, feed, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	output, stdout, err := os.Pipe()
	if err != nil {
		feed.Close()
		return err
	}
	defer output.Close()
	process, err := os.StartProcess(program, []string{program}, &os.ProcAttr{Env: os.Environ(), Files: []*os.File{stdin, stdout, os.Stderr}})
	stdout.Close()
	if err != nil {
		feed.Close()
		return err
	}
	late := time.AfterFunc(predecessorTime, func() { process.Kill() })
	defer late.Stop()
	// A configuration is less than a pipe holds.
	_, err = feed.Write(input)
	feed.Close()
	said, _ := io.ReadAll(io.LimitReader(output, maxOutput))
	state, failure := process.Wait()
	switch {
	case failure != nil:
		return errors.Join(err, failure)
	case state.Success():
		return nil
	}
	var told struct {
		Message string `json:"msg"`
	}
	if json.Unmarshal(said, &told) != nil || told.Message == "" {
		told.Message = strings.TrimSpace(string(said))
	}
	return fmt.Errorf("%s: %s", state, told.Message)
}
