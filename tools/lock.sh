#!/usr/bin/env bash
# Resolve the pinned package sets anew: constraints.txt for CPUs, constraints-gpu.txt for GPUs.
#
#   tools/lock.sh            to the newest versions that fit
#   tools/lock.sh --check    write nothing; fail if a set is not whole: a pin is missing, does not fit or is not needed
#
# Reads descriptions of packages, not the packages. One set serves Python 3.11 and 3.12. The files name no package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1-}" in
  '') each=lock ;;
  --check) each=check ;;
  *) echo "usage: tools/lock.sh [--check]" >&2; exit 2 ;;
esac
scratch=$(mktemp --directory)
trap 'rm -rf "$scratch"' EXIT

# The same marker on every line says only what [tool.uv] environments in pyproject.toml says.
marker="python_full_version < '3.13' and platform_machine == 'x86_64'"
marker+=" and platform_python_implementation == 'CPython' and sys_platform == 'linux'"

# resolve EXTRA FILE [OPTION...]: FILE holds the versions to stay with, and then the set.
resolve() {
  .venv/bin/uv pip compile pyproject.toml --extra "$1" --extra dev --extra operator --extra s3 --extra wandb \
    --extra mlflow --extra reasoning-gym --override overrides.txt --universal --python-version 3.11 "${@:3}" \
    --no-emit-index-url --no-header --no-annotate --quiet --output-file "$2" >/dev/null
  sed -i "s/ ; $marker\$//" "$2"
}

lock() {
  printf '==> Resolving %s\n' "$2"
  resolve "$1" "$scratch/$2" --upgrade
  cp "$scratch/$2" "$2"
}

check() {
  cp "$2" "$scratch/$2"
  resolve "$1" "$scratch/$2"
  if diff "$2" "$scratch/$2" >"$scratch/diff"; then
    printf '==> %s: whole, %d packages\n' "$2" "$(wc -l <"$2")"
  else
    printf 'error: %s is not what pyproject.toml asks for: run make lock, or (<) drop and (>) add:\n' "$2" >&2
    grep '^[<>]' "$scratch/diff" >&2
    exit 1
  fi
}

"$each" cpu constraints.txt
"$each" gpu constraints-gpu.txt
