#!/usr/bin/env bash
# Build the images: what the operator runs in, and what a job's head and workers run in.
#
#   images/build.sh              operator and runtime, for CPUs
#   images/build.sh operator     one of operator, runtime, runtime-gpu
#
#   CONTAINER_TOOL   podman or docker, or a program that takes the same arguments (podman, else docker)
#   BASE             the image that they start from (python:3.11-slim-bookworm)
#   REPOSITORY       what comes before their names (localhost): REPOSITORY/rlhf-runtime:VERSION-cpu
#   UV_CACHE_DIR     with podman: packages that uv keeps there are not downloaded again (uv's own folder)
#
# Steps reach the package index as pip and uv do here: their settings and SSL_CERT_FILE are lent to the steps as
# secrets and are in no layer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  printf 'error: %s\n' "${*:2}" >&2
  exit "$1"
}

find_tool() {
  local name
  for name in ${CONTAINER_TOOL:-podman docker}; do
    ! command -v "$name" >/dev/null || { command -v "$name" && return; }
  done
  fail 4 "images cannot be built: there is no ${CONTAINER_TOOL:-podman and no docker} on this machine; install" \
    "one (Debian and Ubuntu: apt-get install podman), or name a program that builds: CONTAINER_TOOL=..."
}

# pip_settings: what pip is told here by files and variables, as its file. The first of a name counts. An active
# environment may have a Python without pip.
pip_settings() {
  echo '[global]'
  { python3 -m pip config list || pip config list || true; } 2>/dev/null |
    sed -nE "s/^(:env:|global)\.(index-url|extra-index-url|timeout|default-timeout|trusted-host)='(.*)'$/\2 = \3/p" |
    awk '!seen[$1]++'
}

# uv_settings: what uv is told, as its file; pip's index where it is told none.
uv_settings() {
  local index=${UV_DEFAULT_INDEX-}
  [[ -n $index ]] || index=$(sed -n 's/^index-url = //p' "$secrets/pip.conf")
  echo 'system-certs = true'
  [[ -z $index ]] || printf 'index-url = "%s"\n' "$index"
}

# lend: the settings as options of the build.
lend() {
  local certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} name
  pip_settings >"$secrets/pip.conf"
  uv_settings >"$secrets/uv.toml"
  [[ ! -f $certificates ]] || cat "$certificates" >"$secrets/ca.pem"
  for name in pip.conf uv.toml ca.pem; do
    [[ ! -f $secrets/$name ]] || options+=(--secret "id=$name,src=$secrets/$name")
  done
}

# share_cache: uv's folder, of which steps see a copy that they may write. docker cannot lend folders.
share_cache() {
  local cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}
  [[ ! -d $cache ]] || ! "$tool" --version 2>/dev/null | grep -qi podman ||
    options+=(--volume "$(realpath "$cache"):/run/uv-cache:O")
}

# build FOLDER NAME:TAG [VARIANT]
build() {
  local begin=$SECONDS
  printf '==> Building %s\n' "$repository/$2"
  "$tool" build "${options[@]}" --file "images/$1/Dockerfile" --tag "$repository/$2" \
    ${3:+--build-arg "VARIANT=$3"} . ||
    fail 4 "$repository/$2 could not be built; the reason is above"
  printf '==> %s: built in %d s\n' "$repository/$2" "$((SECONDS - begin))"
}

(($#)) || set -- operator runtime
for image in "$@"; do
  [[ $image =~ ^(operator|runtime|runtime-gpu)$ ]] ||
    fail 2 "no such image: $image; allowed: operator, runtime, runtime-gpu"
done
tool=$(find_tool)
repository=${REPOSITORY:-localhost}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
options=(--build-arg "BASE=${BASE:-python:3.11-slim-bookworm}" --build-arg "VERSION=$version"
  --label "org.opencontainers.image.revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
secrets=$(mktemp --directory)
trap 'rm -rf "$secrets"' EXIT
lend
share_cache
for image in "$@"; do
  case $image in
    operator) build operator "rlhf-operator:$version" ;;
    runtime) build runtime "rlhf-runtime:$version-cpu" cpu ;;
    runtime-gpu) build runtime "rlhf-runtime:$version-gpu" gpu ;;
  esac
done
