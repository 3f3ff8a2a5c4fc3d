#!/bin/sh
# Installs the Debian packages that building, testing and the demo use.
set -eu

need=""
want() { # want COMMAND PACKAGE: install PACKAGE if COMMAND is not there
	command -v "$1" >/dev/null 2>&1 || [ -x "$1" ] || need="$need $2"
}
want ip iproute2
want nft nftables
want iptables iptables
want ping iputils-ping
want conntrack conntrack
want etcd etcd-server
want /usr/lib/cni/portmap containernetworking-plugins

[ -n "$need" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "these Debian packages are missing, and installing them needs root:$need" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing$need"
# shellcheck disable=SC2086 # a list of words
{ apt-get update && apt-get install -y --no-install-recommends $need; } >"$log" 2>&1 || {
	cat "$log" >&2
	exit 1
}
