package journal

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// events reads what inotify(7) tells, and says whether any of it concerns the file of a name,
// and whether nothing more will be told, as the directory is gone.
func events(told []byte, name string) (concerns, over bool) {
	for len(told) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(told[4:])
		length := binary.NativeEndian.Uint32(told[12:])
		told = told[unix.SizeofInotifyEvent:]
		if uint64(length) > uint64(len(told)) {
			return true, false
		}
		of := string(bytes.TrimRight(told[:length], "\x00"))
		told = told[length:]
		if mask&(unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0 {
			return true, true
		}
		// What was told of and lost may have concerned any file.
		concerns = concerns || of == name || mask&unix.IN_Q_OVERFLOW != 0
	}
	return concerns, false
}
