from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
for name in ("data", "rewards", "models", "preflight"):
    package = importlib.import_module(f"rlhf_runtime.{name}")
    for module in pkgutil.iter_modules(package.__path__, f"rlhf_runtime.{name}."):
        importlib.import_module(module.name)
print(*sorted({"torch", "ray", "transformers", "vllm"} & set(sys.modules)))
"""


def test_what_is_checked_before_a_start_needs_neither_torch_nor_ray() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == ""
