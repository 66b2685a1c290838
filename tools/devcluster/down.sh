#!/usr/bin/env bash
# Stop the cluster and remove what it left: processes, containers, mounts, network, cgroups, its state folder.
# The binaries stay in the cache.
set -euo pipefail
# shellcheck source=lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/arguments.sh
source "$ROOT/lib/arguments.sh"
# shellcheck source=lib/process.sh
source "$ROOT/lib/process.sh"
# shellcheck source=lib/ports.sh
source "$ROOT/lib/ports.sh"
# shellcheck source=lib/node.sh
source "$ROOT/lib/node.sh"
# shellcheck source=lib/node-removal.sh
source "$ROOT/lib/node-removal.sh"

[[ -f $ARGUMENTS ]] || { say "No cluster in $DEVCLUSTER_STATE" && exit; }
lock
parse_saved
stop 10 kubelet ray-operator kueue kwok kube-scheduler kube-controller-manager kube-proxy network-policies coredns
[[ $mode != node ]] || remove_containers
stop 2 kube-apiserver # it would wait a minute for open watches
stop 10 containerd etcd
if [[ $mode == node ]]; then
  remove_mounts
  remove_network
  remove_cgroups
  remove_strays
fi
rm -rf "$DEVCLUSTER_STATE"
say "Down: nothing of the cluster in $DEVCLUSTER_STATE is left"
