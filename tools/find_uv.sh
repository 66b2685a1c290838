#!/usr/bin/env bash
# Print the path of uv: the one on PATH, or else one that is installed into .venv-tools.
#
#   tools/find_uv.sh PYTHON
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1 own=.venv-tools/bin/uv
if uv --version >/dev/null 2>&1; then command -v uv; exit; fi
if ! "$own" --version >/dev/null 2>&1; then
  echo "==> Installing uv into .venv-tools" >&2
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "error: $python cannot make virtual environments; install them (Debian and Ubuntu: apt-get install" \
      "python3-venv), or install uv" >&2
    exit 4
  fi
  rm -rf .venv-tools
  "$python" -m venv .venv-tools >&2
  .venv-tools/bin/python -m pip install --quiet --disable-pip-version-check \
    "$(grep '^uv==' constraints.txt)" >&2 || exit 5
fi
echo "$own"
