package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// childStopped is what waitid(2) says of a child that has stopped (CLD_STOPPED).
const childStopped = 5

// Pause stops a child of this process by SIGSTOP, until it gets SIGCONT, and
// returns when none of its threads does anything any more. The signal alone does
// not see to that: threads go on until the scheduler has one of them take it. It
// is an error if the child has ended, or ends before it stops; whoever waits for
// that still learns of it. The kernel must have pidfds (Linux 5.4).
func Pause(p *os.Process) error {
	var failed error
	err := p.WithHandle(func(fd uintptr) {
		if failed = unix.PidfdSendSignal(int(fd), unix.SIGSTOP, nil, 0); failed != nil {
			return
		}
		failed = waitStopped(int(fd))
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("pause process %d: %w", p.Pid, err)
	}
	return nil
}

// waitStopped waits until all threads of a child have stopped. It leaves what it
// is told for others to be told, too.
func waitStopped(pidfd int) error {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, pidfd, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && info.Code == childStopped:
			return nil
		case err == nil, errors.Is(err, unix.ECHILD):
			return os.ErrProcessDone
		default:
			return err
		}
	}
}
