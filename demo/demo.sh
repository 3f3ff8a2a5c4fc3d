#!/bin/sh
# Shows Weft: three nodes, pods on each, who reaches whom and why, and who may.
# Expects weft in PATH, with its companions beside it, and root. Leaves nothing
# behind.
set -eu

bold='' cyan='' plain=''
if [ -t 1 ]; then
	bold=$(printf '\033[1m') cyan=$(printf '\033[36m') plain=$(printf '\033[0m')
fi
say() { printf '\n%s\n' "$bold$*$plain"; }
run() {
	printf '%s\n' "$cyan\$ $*$plain"
	"$@"
}

[ "$(id -u)" = 0 ] || { echo "the demo needs root: its nodes are network namespaces" >&2; exit 1; }
# A directory of its own: what the end takes down is never another's lab.
WEFT_LAB_DIR=$(mktemp -d /run/weft-demo.XXXXXX)
export WEFT_LAB_DIR
trap 'weft lab down >/dev/null 2>&1 || rmdir "$WEFT_LAB_DIR" 2>/dev/null || true; rm -f "$WEFT_LAB_DIR.yaml"' EXIT
trap 'exit 130' INT TERM

say "Three nodes, each with the real agent; etcd and a controller beside them"
run weft lab up --nodes 3 --plugin openshift-networkpolicy

say "Pods: processes in namespaces of their own, attached through the CNI plug-in"
run weft lab run web --node node1
run weft lab run api --node node2 --label tier=api
run weft lab run db --node node3 --label app=db
run weft get pods -o wide

say "Who reaches whom, and under which address the receiver sees the sender"
pods="web api db"
printf '%-12s' 'from \ to'
printf '%-16s' $pods
echo
for from in $pods; do
	printf '%-12s' "$from"
	for to in $pods; do
		# The answer is the receiver's name and the address it saw.
		answer=$(weft lab exec "$from" -- weft lab fetch "http://$(weft lab address "$to"):8080/") || answer="$to unreachable"
		seen=${answer#"$to "}
		printf '%-16s' "${seen%:*}"
	done
	echo
done

say "Names: each node answers its own pods, for Services and for the world outside"
run weft apply -f - <<'YAML'
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {selector: {app: db}, ports: [{port: 80, targetPort: http}]}
YAML
until weft lab exec web -- weft lab fetch http://db/ >/dev/null 2>&1; do sleep 0.1; done
run weft lab exec web -- cat /etc/resolv.conf
run weft lab exec web -- weft lab fetch http://db/
run weft lab exec web -- weft lab fetch http://www.outside.example:8080/

say "Why does a packet arrive?"
run weft why web db:8080

say "Network policy: only what has the label tier=api may reach db"
cat >"$WEFT_LAB_DIR.yaml" <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {tier: api}}}]}]
YAML
run cat "$WEFT_LAB_DIR.yaml"
say "What would change, before anything does; then it is in force"
run weft policy try -f "$WEFT_LAB_DIR.yaml"
run weft apply -f "$WEFT_LAB_DIR.yaml"
until weft policy status >/dev/null; do sleep 0.1; done
run weft policy status
for from in web api; do
	printf '%s\n' "$cyan\$ weft lab exec $from -- weft lab fetch http://$(weft lab address db):8080/$plain"
	timeout 1 weft lab exec "$from" -- weft lab fetch "http://$(weft lab address db):8080/" 2>/dev/null || echo "no answer"
done
run weft why web db:8080 || true # it says no, and so does its exit code
run weft drops

say "The routes on node1 (proto 87 is Weft's)"
run weft lab exec node/node1 -- ip route

say "The whole in one view"
run weft status

say "That was it. To go on by hand:"
cat <<'TXT'
  export PATH=$PWD/bin:$PATH
  weft lab up                 # or: weft lab up --plugin flannel --nodes 5
  weft lab run web --node node1
  weft why node/node2 web:8080
  weft lab down               # stops it; nothing is left
TXT
