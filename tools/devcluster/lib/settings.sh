# shellcheck shell=bash disable=SC2034  # sourced; the other scripts use these variables
# Where a cluster keeps its files, and how scripts speak. What has a DEVCLUSTER_ name can be set in the
# environment; a cluster is known by its state folder.

cache_home=${XDG_CACHE_HOME:-$HOME/.cache} state_home=${XDG_STATE_HOME:-$HOME/.local/state}
DEVCLUSTER_CACHE=$(realpath -m "${DEVCLUSTER_CACHE:-$cache_home/rlhf-operator/devcluster}")
DEVCLUSTER_STATE=$(realpath -m "${DEVCLUSTER_STATE:-$state_home/rlhf-operator/devcluster}")

IMAGES=$DEVCLUSTER_CACHE/images # podman's store of what nodes run

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BIN=$DEVCLUSTER_STATE/bin # links to the binaries that this cluster was started with
PKI=$DEVCLUSTER_STATE/pki
CONFIG=$DEVCLUSTER_STATE/config
ARGUMENTS=$DEVCLUSTER_STATE/arguments # what cluster-up was last given; marks the folder as a cluster's
ADMIN=$DEVCLUSTER_STATE/kubeconfig

# Exit codes, as those of the rlhf command.
USAGE=2
MACHINE=4

say() { printf '==> %s\n' "$*"; }
# fail CODE TEXT...: ends the script.
fail() {
  printf 'error: %s\n' "${*:2}" >&2
  exit "$1"
}

# environment: the line that makes a shell use the cluster.
environment() { echo "export KUBECONFIG=$ADMIN PATH=$BIN:\$PATH"; }

# The real node. There can be one on a host.
DEVCLUSTER_NODE=${DEVCLUSTER_NODE:-node1}
DEVCLUSTER_POD_CIDR=${DEVCLUSTER_POD_CIDR:-10.245.0.0/24}
BRIDGE=rlhfdev0
BRIDGE_IP=${DEVCLUSTER_POD_CIDR%.*}.1 # also where the API server and DNS listen
SERVICE_CIDR=10.96.0.0/16
SERVICE_API_IP=10.96.0.1 # its first address: the Service `kubernetes`
CONTAINERD_SOCKET=$DEVCLUSTER_STATE/containerd.sock
CGROUP=rlhf-devcluster
