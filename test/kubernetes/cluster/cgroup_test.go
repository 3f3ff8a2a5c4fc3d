package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHierarchies(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo string
		want      []hierarchy
	}{
		"version 1, with systemd's": {
			`25 1 0:22 / /sys rw,relatime - sysfs sysfs rw
29 25 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
30 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 29 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/systemd/agent,name=systemd
32 29 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
`,
			[]hierarchy{{"/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"}, {"/sys/fs/cgroup/systemd", "name=systemd,none"}, {"/sys/fs/cgroup/unified", ""}},
		},
		"version 2": {
			"35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
			[]hierarchy{{"/sys/fs/cgroup", ""}},
		},
		"another's": {"35 24 0:30 / /mnt/cgroup rw - cgroup2 cgroup2 rw\n36 24 0:31 / /sys/fs/cgroups rw - cgroup2 cgroup2 rw\n\nx - y\n", nil},
	} {
		got, err := hierarchies(c.mountinfo)
		if (err != nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
