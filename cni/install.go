package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// followers are the plug-ins that Weft has work after its own where they are
// installed, and the capability each offers.
var followers = []Follower{
	{Type: "portmap", Capability: "portMappings"},
	{Type: "bandwidth", Capability: "bandwidth"},
}

// Follower is a plug-in that works on what weft-cni made.
type Follower struct {
	// Type is the name of its binary; Capability what it has the runtime pass.
	Type, Capability string
	// Versions are the versions of the specification it speaks.
	Versions []string
}

// Conflist renders the CNI configuration that has the followers work after
// weft-cni, in the latest version that all of them speak. A socket other than
// protocol.DefaultSocket is named in it.
func Conflist(socket string, followers ...Follower) ([]byte, error) {
	first := map[string]any{"type": ShimName}
	if socket != "" && socket != protocol.DefaultSocket {
		first["socket"] = socket
	}
	versions, plugins := slices.Clone(protocol.Versions), []map[string]any{first}
	for _, f := range followers {
		versions = slices.DeleteFunc(versions, func(v string) bool { return !slices.Contains(f.Versions, v) })
		plugins = append(plugins, map[string]any{"type": f.Type, "capabilities": map[string]bool{f.Capability: true}})
	}
	if len(versions) == 0 {
		return nil, errors.New("the CNI plug-ins have no version of the specification in common with weft-cni")
	}
	conf, err := json.MarshalIndent(map[string]any{"cniVersion": versions[len(versions)-1], "name": NetworkName, "plugins": plugins}, "", "  ")
	return append(conf, '\n'), err
}

// Install says where a runtime looks for plug-ins and their configuration.
type Install struct {
	// ConfFile is the path of the configuration list to write, as
	// /etc/cni/net.d/10-weft.conflist; empty writes none.
	ConfFile string
	// BinDir is where the runtime finds plug-ins, as /opt/cni/bin.
	BinDir string
	// Shim is the path of the weft-cni to copy into BinDir; empty copies none.
	Shim string
}

// Write installs weft-cni and then, since a runtime begins to use it at that
// moment, the configuration, which leads to the agent at socket. Each file is
// replaced as a whole, and only if it differs.
func (i Install) Write(socket string) error {
	if i.Shim != "" {
		if err := i.copyShim(); err != nil {
			return fmt.Errorf("install %s: %w", ShimName, err)
		}
	}
	if i.ConfFile == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := findFollowers(ctx, i.BinDir)
	if err != nil {
		return err
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

func (i Install) copyShim() error {
	if i.BinDir == "" {
		return errors.New("the directory for CNI plug-ins is not given")
	}
	target := filepath.Join(i.BinDir, ShimName)
	from, err := os.Open(i.Shim)
	if err != nil {
		return err
	}
	defer from.Close()
	src, err := from.Stat()
	if err != nil {
		return err
	}
	if dst, err := os.Stat(target); err == nil && os.SameFile(src, dst) {
		return nil
	}
	return replace(target, from, 0o755)
}

// findFollowers returns the followers in dir with the versions they speak.
func findFollowers(ctx context.Context, dir string) ([]Follower, error) {
	var found []Follower
	for _, f := range followers {
		path := filepath.Join(dir, f.Type)
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
	// The leading dot keeps runtimes from taking it for a configuration.
	temp, err := os.CreateTemp(filepath.Dir(path), ".weft-*")
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
