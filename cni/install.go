package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/weftnet/weft/cni/protocol"
)

// ShimName is the name of the plug-in's binary, and its type in a CNI
// configuration.
const ShimName = "weft-cni"

// NetworkName is the name of the CNI configuration that Weft installs.
const NetworkName = "weft"

// ownPrefix begins the names of the plug-ins that Weft installs, so that they
// are never those of another network or of the distribution.
const ownPrefix = "weft-"

// portmap is the plug-in to which agents before left ports of the node.
const portmap = "portmap"

// portMappings is the capability by which a runtime passes what ports of the
// node are to lead to a pod.
const portMappings = "portMappings"

// followers are the plug-ins that Weft has work after its own, and the
// capability each offers.
var followers = []Follower{
	{Type: "bandwidth", Capability: "bandwidth"},
}

// Follower is a plug-in that works on what weft-cni made.
type Follower struct {
	// Type is the name of its binary; Capability what it has the runtime pass, empty for
	// one that is there to take away what it made before.
	Type, Capability string
	// Backend is what a portmap is told to work with.
	Backend string
	// Versions are the versions of the specification it speaks.
	Versions []string
}

// Conflist renders the CNI configuration that has the followers work after
// weft-cni, in the latest version that all of them speak. A socket other than
// protocol.DefaultSocket is named in it.
func Conflist(socket string, followers ...Follower) ([]byte, error) {
	first := map[string]any{"type": ShimName, "capabilities": map[string]bool{portMappings: true}}
	if socket != "" && socket != protocol.DefaultSocket {
		first["socket"] = socket
	}
	versions, plugins := slices.Clone(protocol.Versions), []map[string]any{first}
	for _, f := range followers {
		versions = slices.DeleteFunc(versions, func(v string) bool { return !slices.Contains(f.Versions, v) })
		plugin := map[string]any{"type": f.Type}
		if f.Capability != "" {
			plugin["capabilities"] = map[string]bool{f.Capability: true}
		}
		if f.Backend != "" {
			plugin["backend"] = f.Backend
		}
		plugins = append(plugins, plugin)
	}
	if len(versions) == 0 {
		return nil, errors.New("the CNI plug-ins have no version of the specification in common with weft-cni")
	}
	conf, err := json.MarshalIndent(map[string]any{"cniVersion": versions[len(versions)-1], "name": NetworkName, "plugins": plugins}, "", "  ")
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
	// Plugins is a directory with the standard plug-in bandwidth, to copy into BinDir as
	// weft-bandwidth. If it is empty, or does not have it, that in BinDir serves, if any.
	Plugins string
	// Translated says that there may be pods for which portmap translates ports of the
	// node, as it did under earlier agents. It stays in the configuration as it is there, to
	// take that away with each of them, and gets no more ports.
	Translated bool
}

// copies is what is copied into BinDir: the path it is read from, by the name
// it gets.
func (i Install) copies() map[string]string {
	files := map[string]string{}
	if i.Shim != "" {
		files[ShimName] = i.Shim
	}
	if i.Plugins != "" {
		for _, f := range followers {
			from := filepath.Join(i.Plugins, f.Type)
			if _, err := os.Stat(from); err == nil {
				files[ownPrefix+f.Type] = from
			}
		}
	}
	return files
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := i.findFollowers(ctx, files)
	if err != nil {
		return err
	}
	if i.Translated {
		found = append(i.translator(), found...)
	}
	conf, err := Conflist(socket, found...)
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
		for _, name := range append([]string{ShimName}, ownNames()...) {
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

// ownNames are the names in BinDir of the followers that Weft brings along, or did.
func ownNames() []string {
	names := []string{ownPrefix + portmap}
	for _, f := range followers {
		names = append(names, ownPrefix+f.Type)
	}
	return names
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
		Type    string `json:"type"`
		Backend string `json:"backend"`
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

// translator returns the portmap of the configuration that is there. It speaks the version
// of that.
func (i Install) translator() []Follower {
	conf, err := readConf(i.ConfFile)
	if err != nil {
		return nil
	}
	for _, p := range conf.Plugins {
		if p.Type == portmap || p.Type == ownPrefix+portmap {
			return []Follower{{Type: p.Type, Backend: p.Backend, Versions: []string{conf.CNIVersion}}}
		}
	}
	return nil
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

// findFollowers returns the followers with the versions they speak: those of
// Weft's own that were copied into BinDir, or else those that are there.
func (i Install) findFollowers(ctx context.Context, copied map[string]string) ([]Follower, error) {
	var found []Follower
	for _, f := range followers {
		// The copy may lie where an agent in a container must not run
		// programs; what it was copied from answers the same.
		path, own := copied[ownPrefix+f.Type]
		if own {
			f.Type = ownPrefix + f.Type
		} else {
			path = filepath.Join(i.BinDir, f.Type)
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		info, err := invoke.GetVersionInfo(ctx, path, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}, PluginDecoder: cniversion.PluginDecoder{}})
		if err != nil {
			return nil, fmt.Errorf("ask %s which versions of CNI it speaks: %w", path, err)
		}
		f.Versions = info.SupportedVersions()
		found = append(found, f)
	}
	return found, nil
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
