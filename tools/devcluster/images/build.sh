#!/usr/bin/env bash
# Build this project's images without a registry, and give them to the cluster's node if it runs:
#
#   tools/devcluster/images/build.sh [operator|runtime|runtime-gpu]...    (operator and runtime)
#
# The base image is made from Debian's packages. Needs root, podman and mmdebstrap; the first time 18 GB of disk.
set -euo pipefail
# shellcheck source=../lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/settings.sh"
# shellcheck source=../lib/process.sh
source "$ROOT/lib/process.sh"
# shellcheck source=../lib/requirements.sh
source "$ROOT/lib/requirements.sh"

# room_problems [IMAGE]...: until the runtime's image is there, its layers lie on the disk up to three times.
room_problems() {
  if (($# == 0)) || [[ " $* " == *" runtime"* ]]; then
    "$ROOT/images/podman" images --quiet localhost/rlhf-runtime 2>/dev/null | grep --quiet . ||
      room_problem "$DEVCLUSTER_CACHE" 18 "the first build of the runtime's image, which keeps 8 GB"
  fi
}

refuse "$(image_problems; room_problems "$@")"
"$ROOT/images/base.sh"
CONTAINER_TOOL=$ROOT/images/podman REPOSITORY=localhost "$ROOT/../../images/build.sh" "$@"
# What earlier builds left; what today's left serves the next one, and may be on the node.
"$ROOT/images/podman" image prune --force --filter until=24h >/dev/null
! alive containerd || "$ROOT/images/load.sh"
