#!/usr/bin/env bash
# Print the line that makes a shell use the cluster, its kubectl and its helm:
#
#   eval "$(tools/devcluster/env.sh)"
set -euo pipefail
# shellcheck source=lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"

[[ -f $ADMIN ]] || fail "$USAGE" "no cluster in $DEVCLUSTER_STATE: make cluster-up starts one"
environment
