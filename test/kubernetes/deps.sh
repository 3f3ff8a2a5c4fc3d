#!/bin/sh
# Installs the Debian packages that a Kubernetes cluster on this machine uses:
# what the kubelet, kube-proxy and containerd call, and what goes into the
# images of the cluster.
#
#	deps.sh DIRECTORY
#
# DIRECTORY is where the programs of the cluster are kept. nginx is put there
# and not installed, because its package would start a server.
set -eu
out=${1:?directory for the programs}

need=""
want() { # want COMMAND PACKAGE: install PACKAGE if COMMAND is not there
	command -v "$1" >/dev/null 2>&1 || [ -x "$1" ] || need="$need $2"
}
# the nodes
want runc runc
want conntrack conntrack
want nft nftables
want iptables iptables
want modprobe kmod
want mount mount
# the images
want busybox busybox-static
want bash bash
want curl curl
want wget wget
want dig bind9-dnsutils
want nc.openbsd netcat-openbsd
want iperf iperf
want ip iproute2
mkdir -p "$out"

[ -n "$need" ] || [ ! -x "$out/nginx" ] || exit 0
log=$(mktemp)
unpacked=$(mktemp -d)
trap 'rm -rf "$log" "$unpacked"' EXIT
fail() {
	cat "$log" >&2
	exit 1
}
if [ -n "$need" ]; then
	if [ "$(id -u)" != 0 ]; then
		echo "these Debian packages are missing, and installing them needs root:$need" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	echo "installing$need"
	# shellcheck disable=SC2086 # a list of words
	{ apt-get update && apt-get install -y --no-install-recommends $need; } >"$log" 2>&1 || fail
fi
if [ ! -x "$out/nginx" ]; then
	echo "unpacking nginx"
	chmod 755 "$unpacked"
	# The lists may be older than the archive: try, then look what is new.
	(
		cd "$unpacked"
		apt-get download nginx || { apt-get update && apt-get download nginx; }
		dpkg-deb -x nginx_*.deb .
	) >"$log" 2>&1 || fail
	cp "$unpacked/usr/sbin/nginx" "$out/nginx.new"
	mv "$out/nginx.new" "$out/nginx"
fi
