#!/usr/bin/env bash
# Start a Kubernetes cluster on this machine, without Docker and without a registry. Parts that run are left
# alone: give it again to start what was killed, or to change the number of fake nodes.
#
#   up.sh [--fake-nodes N]                          control plane and KubeRay; no container runs
#   up.sh --node [--fake-gpus N] [--fake-nodes N]   also a node that runs containers; needs root
#
#   --kueue          also Kueue, which queues RayClusters; a cluster that has it keeps it
#   --fake-nodes N   nodes of 8 nvidia.com/gpu whose pods become Ready without running (4; with --node 0)
#   --fake-gpus N    the real node says that it has N nvidia.com/gpu
#   --check          first argument: start nothing, say what this machine lacks, also what is not built yet
#
# Without arguments a cluster that is there stays as it was asked for. README.md lists the variables of the
# environment that say where it is.
set -euo pipefail
# shellcheck source=lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/arguments.sh
source "$ROOT/lib/arguments.sh"
# shellcheck source=lib/binaries.sh
source "$ROOT/lib/binaries.sh"
# shellcheck source=lib/requirements.sh
source "$ROOT/lib/requirements.sh"
# shellcheck source=lib/ports.sh
source "$ROOT/lib/ports.sh"
# shellcheck source=lib/process.sh
source "$ROOT/lib/process.sh"
# shellcheck source=lib/credentials.sh
source "$ROOT/lib/credentials.sh"
# shellcheck source=lib/control-plane.sh
source "$ROOT/lib/control-plane.sh"
# shellcheck source=lib/kuberay.sh
source "$ROOT/lib/kuberay.sh"
# shellcheck source=lib/kueue.sh
source "$ROOT/lib/kueue.sh"
# shellcheck source=lib/kwok.sh
source "$ROOT/lib/kwok.sh"
# shellcheck source=lib/node.sh
source "$ROOT/lib/node.sh"

usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

problems() {
  program_problems curl openssl flock setsid
  [[ $mode != node ]] || { node_problems && node_conflicts; }
}

# check: also what could be built, for those who do not want to wait for it.
check() {
  local unbuilt
  unbuilt=$(missing "${needed[@]}" | paste -sd ' ')
  problems
  [[ -z $unbuilt ]] || echo "not built yet: $unbuilt: run \`tools/devcluster/build.sh $unbuilt\` once (it" \
    "needs Go, and up to 10 minutes on two idle cores)"
}

# claim: makes the state folder this cluster's, or finds that it is.
claim() {
  if [[ -d $DEVCLUSTER_STATE && ! -f $ARGUMENTS && -n $(ls -A "$DEVCLUSTER_STATE") ]]; then
    fail "$USAGE" "$DEVCLUSTER_STATE has files that are no cluster's: set DEVCLUSTER_STATE to another folder"
  fi
  mkdir -p "$DEVCLUSTER_STATE"
  lock
  chmod 700 "$DEVCLUSTER_STATE" # it holds the administrator's key
  arguments_text >"$ARGUMENTS"
}

# same_kind: a cluster that is there keeps its mode.
same_kind() {
  local before=control-plane
  [[ -f $ARGUMENTS ]] || return 0
  [[ $(saved_arguments) != *--node* ]] || before=node
  [[ $before == "$mode" ]] || fail "$USAGE" "the cluster in $DEVCLUSTER_STATE is of another kind (got" \
    "$before, asked for $mode): run \`make cluster-down\` first, or set DEVCLUSTER_STATE to another folder"
}

prepare() {
  claim
  choose_ports
  mkdir -p "$PKI" "$CONFIG" "$PIDS" "$LOGS"
  link "${needed[@]}"
  [[ $mode == control-plane ]] || bridge
  credentials
}

if [[ ${1-} == -h || ${1-} == --help ]]; then usage && exit; fi
arguments=("$@")
[[ ${1-} != --check ]] || arguments=("${@:2}")
if ((${#arguments[@]})); then parse "${arguments[@]}"; else parse_saved; fi
needed=("${CONTROL_PLANE[@]}")
[[ $mode != node ]] || needed+=("${NODE[@]}")
[[ $(saved_arguments) != *--kueue* ]] || with_kueue=yes
[[ -z $with_kueue ]] || needed+=(kueue)
if [[ ${1-} == --check ]]; then
  refuse "$(check)"
  say "This machine has what the cluster needs" && exit
fi

same_kind
refuse "$(problems)"
"$ROOT/build.sh" "${needed[@]}"
SECONDS=0
# The cluster is on this host, and none of its parts may read what is the user's.
unset KUBECONFIG http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
prepare
etcd
api_server
kuberay_kinds
[[ -z $with_kueue ]] || kueue_kinds
controllers
kuberay
[[ -z $with_kueue ]] || kueue
[[ $mode == control-plane ]] || { node && advertise_gpus "$num_fake_gpus"; }
fake_nodes "$num_fake_nodes"
say "Up in $SECONDS s. To use it: $(environment)"
