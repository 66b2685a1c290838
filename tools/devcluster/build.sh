#!/usr/bin/env bash
# Build the binaries that are not built yet, from the Go modules of pins.txt.
#
#   tools/devcluster/build.sh               what a control plane and the tests need
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

# compile COMMAND: into the scratch folder. What is run for some minutes is compiled fast: without inlining and
# debugging information, by a compiler that collects its garbage late. A binary does the same however it is compiled,
# so none is built anew for these flags.
compile() {
  local flags=(-v -trimpath -gcflags all="-l -dwarf=false" -tags "$pin_tags" -ldflags "$pin_flags")
  export GOGC=off GOMEMLIMIT=2GiB
  [[ $1 != *-crds ]] || { copy_crds "$1" && exit; }
  if [[ $pin_source == modules/* ]]; then
    cd "$ROOT/$pin_source"
    exec go build "${flags[@]}" -o "$scratch/$1" "$pin_package"
  fi
  GOBIN=$scratch exec go install "${flags[@]}" "$pin_package@$pin_version"
}

# copy_crds NAME: the resource definitions of a module that is not built.
copy_crds() {
  local module
  module=$(go mod download -json "$pin_source" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",$/\1/p')
  mkdir "$scratch/$1"
  install -m 644 "$module/$pin_package"/*.yaml "$scratch/$1/"
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

# add_files COMMAND: what belongs to the version of an operator: its resource definitions, and Kueue's webhooks.
add_files() {
  local config
  case $1 in
    ray-operator) config=$(module_folder "$pin_package")/config ;;
    kueue) config=$(module_folder sigs.k8s.io/kueue)/config/components ;;
    *) return 0 ;;
  esac
  mkdir "$scratch/crds"
  install -m 644 "$config"/crd/bases/*.yaml "$scratch/crds/"
  [[ $1 != kueue ]] || install -m 644 "$config/webhook/manifests.yaml" "$scratch/webhooks.yaml"
}

# module_folder MODULE: where its source is.
module_folder() { (cd "$ROOT/$pin_source" && go list -m -f '{{.Dir}}' "$1"); }

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
  add_files "$1"
  mkdir -p "$(dirname "$pin_folder")"
  chmod 755 "$scratch"
  mv -T "$scratch" "$pin_folder"
  scratch=
  rm "$log"
  say "  $1: built in $((SECONDS - begin)) s"
}

(($#)) || set -- "${CONTROL_PLANE[@]}" "${TESTS[@]}"
[[ $1 != --node ]] || set -- "${CONTROL_PLANE[@]}" "${TESTS[@]}" "${NODE[@]}"
unbuilt=$(missing "$@")
mapfile -t todo <<<"$unbuilt"
[[ -n $unbuilt ]] || { say "Binaries are up to date ($DEVCLUSTER_CACHE)" && exit; }
refuse "$(go_problem "${todo[@]}")"

export CGO_ENABLED=0 GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOWORK=off GOOS='' GOARCH=''
mkdir -p "$DEVCLUSTER_CACHE"
exec 9>"$DEVCLUSTER_CACHE/lock"
flock --nonblock 9 || { say "Waiting for another build" && flock 9; }
say "Building ${#todo[@]} of the cluster's binaries, once: all of them take 9 minutes on two idle cores"
for command in $(missing "${todo[@]}"); do build "$command"; done
say "Built in $SECONDS s ($DEVCLUSTER_CACHE)"
