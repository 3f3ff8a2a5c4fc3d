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

// predecessor is the configuration of a plug-in that worked after weft-cni under agents before:
// of portmap or bandwidth, to which they left the ports of the node and the limits of pods.
// weft-cni has it take away with a pod what it made for that.
type predecessor struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	// Backend is what a portmap worked with.
	Backend string `json:"backend,omitempty"`
	// RuntimeConfig says that there are ports. Without, a portmap does nothing; which they
	// are it does not look at where it takes them away.
	RuntimeConfig *struct {
		PortMappings []portMapping `json:"portMappings"`
	} `json:"runtimeConfig,omitempty"`
}

type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// predecessorOf returns what has a plug-in of a configuration take away what it made; false for one
// that is none of these.
func predecessorOf(name, version, backend string) (p predecessor, ok bool) {
	p = predecessor{CNIVersion: version, Name: NetworkName, Type: name}
	switch strings.TrimPrefix(name, ownPrefix) {
	case "portmap":
		p.Backend = backend
		p.RuntimeConfig = &struct {
			PortMappings []portMapping `json:"portMappings"`
		}{[]portMapping{{HostPort: 1, ContainerPort: 1, Protocol: "tcp"}}}
	case "bandwidth":
	default:
		return p, false
	}
	return p, true
}

// Conflist renders the CNI configuration that has a runtime start weft-cni. A socket other than
// protocol.DefaultSocket is named in it.
func Conflist(socket string) ([]byte, error) { return conflistWith(socket, nil) }

// conflistWith renders one with predecessors.
func conflistWith(socket string, before []predecessor) ([]byte, error) {
	plugin := map[string]any{"type": ShimName, "capabilities": map[string]bool{portMappings: true, bandwidth: true}}
	if socket != "" && socket != protocol.DefaultSocket {
		plugin["socket"] = socket
	}
	if len(before) > 0 {
		plugin["predecessors"] = before
	}
	conf, err := json.MarshalIndent(map[string]any{"cniVersion": protocol.Versions[len(protocol.Versions)-1], "name": NetworkName, "plugins": []any{plugin}}, "", "  ")
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
	// they did under earlier agents. weft-cni has these take that away with each of the pods,
	// and they get nothing else to do.
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
	var before []predecessor
	if i.Followed {
		before = i.predecessors()
	}
	conf, err := conflistWith(socket, before)
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
	CNIVersion string `json:"cniVersion"`
	Plugins    []struct {
		Type         string        `json:"type"`
		Backend      string        `json:"backend"`
		Predecessors []predecessor `json:"predecessors"`
	} `json:"plugins"`
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

// predecessors returns those of the configuration that is there, and the plug-ins that work after
// weft-cni by it. Of these the version is the one that all of it speaks.
func (i Install) predecessors() (all []predecessor) {
	conf, err := readConf(i.ConfFile)
	if err != nil {
		return nil
	}
	for _, plugin := range conf.Plugins {
		all = append(all, plugin.Predecessors...)
		if p, ok := predecessorOf(plugin.Type, conf.CNIVersion, plugin.Backend); ok {
			all = append(all, p)
		}
	}
	return all
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
