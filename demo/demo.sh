#!/bin/sh
# Shows Weft: three nodes, pods on each, who reaches whom and why. Expects weft
# and weft-cni in PATH, and root. Leaves nothing behind.
set -eu

WEFT_LAB_DIR=${WEFT_LAB_DIR:-/run/weft-demo}
export WEFT_LAB_DIR
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '\033[36m$ %s\033[0m\n' "$*"; "$@"; }

[ "$(id -u)" = 0 ] || { echo "the demo needs root: its nodes are network namespaces" >&2; exit 1; }
trap 'weft lab down >/dev/null 2>&1 || true' EXIT
trap 'exit 130' INT TERM

say "Three nodes, each with the real agent; etcd and a controller beside them"
run weft lab up --nodes 3

say "Pods: processes in namespaces of their own, attached through the CNI plug-in"
for pod in web:node1 api:node2 db:node3; do
	run weft lab run "${pod%%:*}" --node "${pod##*:}"
done
run weft get pods -o wide

say "Who reaches whom (each answer names the pod and the address it saw)"
for from in web api db; do
	for to in web api db; do
		printf '%-4s -> %-4s ' "$from" "$to"
		weft lab exec "$from" -- weft lab fetch "http://$(weft lab address "$to"):8080/"
	done
done

say "Why does a packet arrive?"
run weft why web db --port 8080

say "The routes on node1 (proto 87 is Weft's)"
run weft lab exec node/node1 -- ip route

say "The whole in one view"
run weft status

say "That was it. To go on by hand:"
cat <<'TXT'
  export PATH=$PWD/bin:$PATH
  weft lab up                 # or: weft lab up --plugin flannel --nodes 5
  weft lab run web --node node1
  weft why node/node2 web --port 8080
  weft lab down               # stops it; nothing is left
TXT
