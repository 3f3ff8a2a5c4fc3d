package podlink

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The commands of the ioctl SIOCETHTOOL that tell and set whether an interface
// does generic receive offload, GRO (linux/ethtool.h).
const (
	ethtoolGetGRO = 0x2b
	ethtoolSetGRO = 0x2c
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// ethtoolRequest is struct ifreq with its pointer; the kernel reads 40 bytes.
type ethtoolRequest struct {
	name  [unix.IFNAMSIZ]byte
	value *ethtoolValue
	_     [40 - unix.IFNAMSIZ - unsafe.Sizeof(uintptr(0))]byte
}

// mergePackets turns GRO on for an interface in the thread's network
// namespace, which a veth has off. A TCP stream that the pod cut into packets
// is then put together before the node routes it, and goes through routing,
// packet filter and tunnel as one.
func mergePackets(iface string) error {
	if _, err := ethtool(iface, ethtoolSetGRO, 1); err != nil {
		return fmt.Errorf("turn on GRO: %w", err)
	}
	return nil
}

// ethtool does a command that takes, or gives, one value.
func ethtool(iface string, command, data uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	request := ethtoolRequest{value: &ethtoolValue{command, data}}
	copy(request.name[:unix.IFNAMSIZ-1], iface)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&request)
	if errno != 0 {
		return 0, errno
	}
	return request.value.data, nil
}
