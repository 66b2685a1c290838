#!/usr/bin/env bash
# Give images of the cluster's store to its node; without a name, every image that is not a base:
#
#   tools/devcluster/images/load.sh [NAME:TAG...]
#
# They are lent, not copied, and gone with the cluster. Give it again after the cluster was started anew.
set -euo pipefail
# shellcheck source=../lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/settings.sh"
# shellcheck source=../lib/process.sh
source "$ROOT/lib/process.sh"

alive containerd || fail "$USAGE" "no node in $DEVCLUSTER_STATE: start one with" \
  "\`make cluster-up ARGS=--node\`, as root"
if (($# == 0)); then
  mapfile -t names < <("$ROOT/images/podman" images --filter dangling=false --format '{{.Repository}}:{{.Tag}}' |
    grep '/rlhf-')
  set -- "${names[@]}"
fi
(($#)) || fail "$USAGE" "there are no images to load: build them with \`make cluster-images\`"
exec "$ROOT/images/lend.py" "$ROOT/images/podman" "$CONTAINERD_SOCKET" "$@"
