// Package lab makes a cluster on one machine, out of network namespaces, to
// try Weft in and to test it in.
//
// A lab is a switch (a namespace with a bridge, which is also the world
// outside the cluster), controllers with an embedded etcd or one beside them, and nodes. A node
// is a network namespace and a mount namespace in which the real agent runs
// with its ordinary flags; nothing in the agent or the controller knows of
// labs. The lab plays the part of the kubelet and of the container runtime: a
// pod is a process in namespaces of its own, attached by the real CNI binary. When
// it ends, the daemon in kubelet.go has the pod say how, and gives its network
// back.
//
// All that a lab is lies below one directory. Namespaces are kept as
// bind-mounted files there, so that labs in different directories do not meet,
// and nothing in the machine's own namespaces changes but these mounts.
// Whatever is made is first written down there, so that Down finds all of it,
// also when the process that made it was killed.
//
// Start reading at Up. The files are: dir.go (what lies where, locks),
// namespace.go and process.go (the building blocks), underlay.go, control.go,
// node.go and pod.go (the parts), names.go, files.go, env.go and outside.go (by which names
// pods find others).
package lab
