#!/usr/bin/env bash
# Make .venv with the pinned packages, or find that it is up to date.
#
#   tools/setup.sh run    what `rlhf run` needs
#   tools/setup.sh dev    that, and what the tests and checks need
#
# PYTHON names the interpreter (default: the first of python3.11, python3.12, python3 that is 3.11 or
# 3.12). uv is taken from PATH; where it is missing it is installed into .venv-tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 4; }

case "${1-}" in
  run) extras="cpu,cluster" ;;
  dev) extras="cpu,dev,operator,s3,wandb,mlflow" ;;
  *) echo "usage: tools/setup.sh run|dev" >&2; exit 2 ;;
esac

# The path of the given interpreter if it is one that can be used.
interpreter() {
  "$1" -c 'import sys
assert (3, 11) <= sys.version_info[:2] <= (3, 12)
print(sys.executable)' 2>/dev/null
}

find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3.12 python3}; do
    interpreter "$name" && return
  done
  fail "no usable Python: looked for ${PYTHON:-python3.11, python3.12 and python3}, allowed 3.11 and" \
    "3.12; install one (Debian and Ubuntu: apt-get install python3.11 python3.11-venv), or name" \
    "it: make setup PYTHON=/path/to/python3.11"
}

# True if packages that come without a wheel can be built.
can_compile() {
  command -v cc >/dev/null &&
    "$1" -c 'import os, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# What .venv was made from, and where. A set for development serves for running, too.
fingerprint() {
  { pwd; cat constraints.txt overrides.txt pyproject.toml tools/setup.sh; } | sha256sum
}
is_current() {
  local kind
  interpreter .venv/bin/python >/dev/null || return 1
  for kind in "$1" dev; do
    [[ -f .venv/.setup-$kind && "$(cat ".venv/.setup-$kind")" == "$(fingerprint)" ]] && return
  done
  return 1
}

not_installed() {
  fail "the packages could not be installed; the reason is above. If the package index could not be" \
    "reached: check the network and HTTPS_PROXY; for a mirror set UV_DEFAULT_INDEX and PIP_INDEX_URL;" \
    "for a certificate of your own SSL_CERT_FILE. Then run the same command again: what was" \
    "downloaded is kept."
}

# Byte code of everything, so that no start has to make it. Some packages ship templates that do not
# compile.
compile_packages() {
  local folders=(.venv/lib crds runtime operator) number
  number=$(find "${folders[@]}" -name '*.py' | wc -l)
  say "Compiling $number Python files to byte code (one to two minutes on two cores): every later" \
    "start is seconds faster"
  { .venv/bin/python -u -m compileall -j 0 "${folders[@]}" || true; } |
    awk -v all="$number" '{
      done += gsub(/Compiling /, "")  # two processes may write one line
      if (done >= told + 5000) { told = done; printf "==>   %d of %d files\n", done, all; fflush() }
    }' >&2
}

say "Checking this machine"
python="$(find_python)"
if is_current "$1"; then
  "$python" tools/check_environment.py --installed
  say "Packages are up to date (.venv)"
  exit
fi
if compgen -G '.venv/.setup-*' >/dev/null; then have=(--installed); else have=(); fi
"$python" tools/check_environment.py "${have[@]}"

uv="$(tools/find_uv.sh "$python")" || { [[ $? == 5 ]] && not_installed; exit 4; }
if ! interpreter .venv/bin/python >/dev/null; then
  say "Making .venv with $python"
  rm -rf .venv
  "$uv" venv --quiet --no-python-downloads --python "$python" .venv
fi
if [[ $1 == dev ]]; then
  if can_compile "$python"; then
    extras+=",reasoning-gym"
  else
    say "No C compiler, or no headers of Python: tests of reasoning-gym will be skipped"
  fi
fi
say "Installing the pinned packages into .venv (about 7 GB; a few minutes without a cache)"
rm -f .venv/.setup-*
"$uv" pip install --python .venv/bin/python --constraint constraints.txt \
  --build-constraint constraints.txt --override overrides.txt --editable ".[$extras]" 2>&1 |
  { grep --line-buffered -vE '^ [-+~] ' >&2 || true; } || not_installed
compile_packages
fingerprint > ".venv/.setup-$1"
say "Ready"
