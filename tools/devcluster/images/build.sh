#!/usr/bin/env bash
# Build this project's images without a registry, and give them to the cluster's node if it runs:
#
#   tools/devcluster/images/build.sh [operator|runtime|runtime-gpu]...    (operator and runtime)
#
# The base image is made from Debian's packages. Needs root, podman and mmdebstrap; the first time about 8 GB of disk.
set -euo pipefail
# shellcheck source=../lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/settings.sh"
# shellcheck source=../lib/process.sh
source "$ROOT/lib/process.sh"

"$ROOT/images/base.sh"
CONTAINER_TOOL=$ROOT/images/podman REPOSITORY=localhost "$ROOT/../../images/build.sh" "$@"
# What earlier builds left; what today's left serves the next one, and may be on the node.
"$ROOT/images/podman" image prune --force --filter until=24h >/dev/null
! alive containerd || "$ROOT/images/load.sh"
