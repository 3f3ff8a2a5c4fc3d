package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weftnet/weft/cni/protocol"
)

// ShimName is the name of the plug-in's binary, and its type in a CNI
// configuration.
const ShimName = "weft-cni"

// NetworkName is the name of the CNI configuration that Weft installs.
const NetworkName = "weft"

// The capabilities by which a runtime passes what ports of the node are to lead to a pod, and
// to what its interface is to be limited.
const (
	portMappings = "portMappings"
	bandwidth    = "bandwidth"
)

// ownPrefix begins the names of the plug-ins that agents before brought along to work after
// weft-cni.
const ownPrefix = "weft-"

// follower is a plug-in that works on what weft-cni made: portmap or bandwidth, to which agents
// before left the ports of the node and the limits of pods.
type follower struct {
	// Type is the name of its binary.
	Type string `json:"type"`
	// Backend is what a portmap is told to work with.
	Backend string `json:"backend,omitempty"`
	// IngressRate is the limit that a bandwidth is told that all pods have, which is none.
	// Without, it fails CHECK.
	IngressRate *int `json:"ingressRate,omitempty"`
}

// Conflist renders the CNI configuration that has a runtime start weft-cni. A socket other than
// protocol.DefaultSocket is named in it.
func Conflist(socket string) ([]byte, error) {
	return conflistWith(socket, protocol.Versions[len(protocol.Versions)-1], nil)
}

// conflistWith renders one, in a version of the specification, that has followers take away what
// they made before.
func conflistWith(socket, version string, left []follower) ([]byte, error) {
	first := map[string]any{"type": ShimName, "capabilities": map[string]bool{portMappings: true, bandwidth: true}}
	if socket != "" && socket != protocol.DefaultSocket {
		first["socket"] = socket
	}
	plugins := []any{first}
	for _, f := range left {
		plugins = append(plugins, f)
	}
	conf, err := json.MarshalIndent(map[string]any{"cniVersion": version, "name": NetworkName, "plugins": plugins}, "", "  ")
	return append(conf, '\n'), err
}

// Install says where a runtime looks for plug-ins and their configuration, and
// what to put there.
type Install struct {
	// ConfFile is the path of the configuration list to write, as
	// /etc/cni/net.d/10-weft.conflist; empty writes none.
	ConfFile string
	// BinDir is where the runtime finds plug-ins, as /opt/cni/bin.
	BinDir string
	// Shim is the path of the weft-cni to copy into BinDir; empty copies none.
	Shim string
	// Followed says that there may be pods on which other plug-ins worked after weft-cni, as
	// they did under earlier agents. These stay in the configuration as they are there, to
	// take that away with each of the pods, and get nothing more to do.
	Followed bool
}

// copies is what is copied into BinDir: the path it is read from, by the name
// it gets.
func (i Install) copies() map[string]string {
	if i.Shim == "" {
		return nil
	}
	return map[string]string{ShimName: i.Shim}
}

// Write installs the plug-ins and then, since a runtime begins to use them at
// that moment, the configuration, which leads to the agent at socket, a path as
// the runtime sees it. Each file is replaced as a whole, and only if it
// differs.
func (i Install) Write(socket string) error {
	files := i.copies()
	if len(files) > 0 && i.BinDir == "" {
		return errors.New("install CNI plug-ins: the directory for them is not given")
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := copyProgram(files[name], filepath.Join(i.BinDir, name)); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	if i.ConfFile == "" {
		return nil
	}
	conf, err := Conflist(socket)
	if version, left := i.left(); i.Followed && len(left) > 0 {
		conf, err = conflistWith(socket, version, left)
	}
	if err != nil {
		return err
	}
	if err := replace(i.ConfFile, bytes.NewReader(conf), 0o644); err != nil {
		return fmt.Errorf("install the CNI configuration: %w", err)
	}
	return nil
}

// Remove takes away what Write installs, the configuration first, and what a
// Write that was killed left. It returns the paths of the files removed. A
// configuration that does not begin with weft-cni is not Weft's: it stays, and
// is an error. Pods can neither start nor be taken down by the runtime
// afterwards, so there should be none.
func (i Install) Remove() (removed []string, err error) {
	remove := func(path string) error {
		err := os.Remove(path)
		if err == nil {
			removed = append(removed, path)
		} else if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	var dirs []string
	if i.ConfFile != "" {
		if err := isOwnConf(i.ConfFile); err != nil {
			return nil, err
		}
		if err := remove(i.ConfFile); err != nil {
			return removed, err
		}
		dirs = append(dirs, filepath.Dir(i.ConfFile))
	}
	var errs []error
	if i.BinDir != "" {
		// The others are what agents before brought along.
		for _, name := range []string{ShimName, ownPrefix + "portmap", ownPrefix + "bandwidth"} {
			path := filepath.Join(i.BinDir, name)
			if !sameFile(path, i.copies()[name]) {
				errs = append(errs, remove(path))
			}
		}
		dirs = append(dirs, i.BinDir)
	}
	for _, dir := range dirs {
		left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
		errs = append(errs, err)
		for _, path := range left {
			errs = append(errs, remove(path))
		}
	}
	return removed, errors.Join(errs...)
}

// isOwnConf says why the configuration at path is not Weft's to remove; nil
// when it is, or is not there.
func isOwnConf(path string) error {
	conf, err := readConf(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil && !errors.Is(err, errMalformed) {
		return err
	}
	if err != nil || len(conf.Plugins) == 0 || conf.Plugins[0].Type != ShimName {
		return fmt.Errorf("%s is not a configuration of %s, and stays: remove it by hand if it is not needed", path, ShimName)
	}
	return nil
}

// written is what matters here of a configuration that is there.
type written struct {
	CNIVersion string     `json:"cniVersion"`
	Plugins    []follower `json:"plugins"`
}

// errMalformed says that a file is no configuration.
var errMalformed = errors.New("it is no CNI configuration")

func readConf(path string) (conf written, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return conf, err
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		return conf, fmt.Errorf("%s: %w: %w", path, errMalformed, err)
	}
	return conf, nil
}

// left returns the followers of the configuration that is there, and the version of that, which
// all of them speak.
func (i Install) left() (version string, left []follower) {
	conf, err := readConf(i.ConfFile)
	if err != nil {
		return "", nil
	}
	for _, f := range conf.Plugins {
		switch strings.TrimPrefix(f.Type, ownPrefix) {
		case "portmap":
			left = append(left, follower{Type: f.Type, Backend: f.Backend})
		case "bandwidth":
			left = append(left, follower{Type: f.Type, IngressRate: new(int)})
		}
	}
	return conf.CNIVersion, left
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

func copyProgram(from, to string) error {
	if sameFile(from, to) {
		return nil
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return replace(to, f, 0o755)
}

// tempPrefix begins the names of files that are being written. The dot keeps
// runtimes from taking them for configurations.
const tempPrefix = ".weft-"

// replace gives the file at path a content, atomically, unless it has it.
func replace(path string, content io.Reader, mode os.FileMode) (err error) {
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return os.Chmod(path, mode)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			temp.Close()
			os.Remove(temp.Name())
		}
	}()
	if _, err := temp.Write(data); err != nil {
		return err
	}
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	// These files outlive a boot, and a power cut must not leave half of one.
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
