package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The commands of the SIOCETHTOOL ioctl (linux/ethtool.h) that turn the
// segmentation of TCP on and off.
const (
	ethtoolSetTSO = 0x1f
	ethtoolSetGSO = 0x24
	ethtoolSetGRO = 0x2c
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// ifreqPointer is struct ifreq with its pointer; the kernel reads 40 bytes.
type ifreqPointer struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [40 - unix.IFNAMSIZ - unsafe.Sizeof(uintptr(0))]byte
}

// setOffload turns segmentation offload of the namespace's interfaces on, as
// they have it by default, or off, so that each packet on the way is one on
// the wire. A veth's GRO is off by default and stays so.
func setOffload(on bool) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	value := ethtoolValue{}
	if on {
		value.data = 1
	}
	commands := []uint32{ethtoolSetTSO, ethtoolSetGSO}
	if !on {
		commands = append(commands, ethtoolSetGRO)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		for _, value.command = range commands {
			ifr := ifreqPointer{data: unsafe.Pointer(&value)}
			copy(ifr.name[:unix.IFNAMSIZ-1], i.Name)
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
			runtime.KeepAlive(&value)
			if errno != 0 && !errors.Is(errno, unix.EOPNOTSUPP) {
				return fmt.Errorf("segmentation offload of %s: %w", i.Name, errno)
			}
		}
	}
	return nil
}
