#!/usr/bin/env bash
# Build the binaries that are not built yet, from the Go modules of pins.txt.
#
#   tools/devcluster/build.sh               what a control plane needs
#   tools/devcluster/build.sh --node        and what a node needs
#   tools/devcluster/build.sh COMMAND...    these, such as kwok or helm
#
# Needs Go. Each goes into a folder of its own below DEVCLUSTER_CACHE, whose name changes with its pin.
set -euo pipefail
# shellcheck source=lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/binaries.sh
source "$ROOT/lib/binaries.sh"
# shellcheck source=lib/requirements.sh
source "$ROOT/lib/requirements.sh"

PROGRESS_SECONDS=${DEVCLUSTER_PROGRESS_SECONDS:-30} # between two lines of progress
scratch=
compiler=

clean_up() {
  [[ -z $compiler ]] || kill "$compiler" 2>/dev/null || true
  [[ -z $scratch ]] || rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# compile COMMAND: into the scratch folder.
compile() {
  if [[ $pin_source == modules/* ]]; then
    cd "$ROOT/$pin_source"
    exec go build -v -trimpath -ldflags "$pin_flags" -o "$scratch/$1" "$pin_package"
  fi
  GOBIN=$scratch exec go install -v -trimpath -ldflags "$pin_flags" "$pin_package@$pin_version"
}

# watch COMMAND: says how far the compiler is until it ends.
watch() {
  local begin=$SECONDS next=$((SECONDS + PROGRESS_SECONDS))
  while kill -0 "$compiler" 2>/dev/null; do
    sleep 0.2
    ((SECONDS >= next)) || continue
    say "  $1: $((SECONDS - begin)) s, $(grep -cv '^go: ' "$log" || true) packages compiled"
    next=$((SECONDS + PROGRESS_SECONDS))
  done
}

# The CRDs belong to the version of KubeRay's operator.
add_crds() {
  local module
  module=$(cd "$ROOT/$pin_source" && go list -m -f '{{.Dir}}' "$pin_package")
  mkdir "$scratch/crds"
  install -m 644 "$module"/config/crd/bases/*.yaml "$scratch/crds/"
}

build() {
  local begin=$SECONDS log=$DEVCLUSTER_CACHE/$1.log
  pin "$1"
  say "Building $1 ${pin_version:-}"
  scratch=$(mktemp --directory "$DEVCLUSTER_CACHE/building.XXXXXX")
  compile "$1" >"$log" 2>&1 9>&- &
  compiler=$!
  watch "$1"
  wait "$compiler" && [[ -x $scratch/$1 ]] || {
    grep -v '^go: downloading' "$log" | tail -n 15 >&2
    fail "$MACHINE" "$1 could not be built; the reason is above, all of it in $log. If modules could not be" \
      "downloaded: check the network, HTTPS_PROXY and \`go env GOPROXY\`, then run the same command again"
  }
  compiler=
  [[ $1 != ray-operator ]] || add_crds
  mkdir -p "$(dirname "$pin_folder")"
  chmod 755 "$scratch"
  mv -T "$scratch" "$pin_folder"
  scratch=
  rm "$log"
  say "  $1: built in $((SECONDS - begin)) s"
}

(($#)) || set -- "${CONTROL_PLANE[@]}"
[[ $1 != --node ]] || set -- "${CONTROL_PLANE[@]}" "${NODE[@]}"
unbuilt=$(missing "$@")
mapfile -t todo <<<"$unbuilt"
[[ -n $unbuilt ]] || { say "Binaries are up to date ($DEVCLUSTER_CACHE)" && exit; }
refuse "$(go_problem "${todo[@]}")"

export CGO_ENABLED=0 GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOWORK=off GOOS='' GOARCH=''
mkdir -p "$DEVCLUSTER_CACHE"
exec 9>"$DEVCLUSTER_CACHE/lock"
flock --nonblock 9 || { say "Waiting for another build" && flock 9; }
say "Building ${#todo[@]} of the cluster's binaries, once: all of them take 10 minutes on two idle cores"
for command in $(missing "${todo[@]}"); do build "$command"; done
say "Built in $SECONDS s ($DEVCLUSTER_CACHE)"
