#!/usr/bin/env bash
# Resolve the pinned package sets anew: constraints.txt for CPUs, constraints-gpu.txt for GPUs.
# One set serves Python 3.11 and 3.12. The files name no package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The same marker on every line says only what [tool.uv] environments in pyproject.toml says.
marker="python_full_version < '3.13' and platform_machine == 'x86_64'"
marker+=" and platform_python_implementation == 'CPython' and sys_platform == 'linux'"

lock() {
  printf '==> Resolving %s\n' "$2"
  .venv/bin/uv pip compile pyproject.toml --extra "$1" --extra dev --extra operator --extra s3 --extra wandb --extra mlflow \
    --override overrides.txt --universal --python-version 3.11 --upgrade \
    --no-emit-index-url --no-header --no-annotate --quiet --output-file "$2.new" >/dev/null
  sed "s/ ; $marker\$//" "$2.new" > "$2"
  rm "$2.new"
}

lock cpu constraints.txt
lock gpu constraints-gpu.txt
