"""The tiers hold: who imports whom, and what stays out of processes that do not need it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tracked_files import ROOT, shown, tracked_files

pytestmark = pytest.mark.slow

CONTRACT_NEEDS = {"packaging", "pydantic", "pydantic_core", "yaml", "rlhf_api"}


def imported(source: Path) -> Iterator[str]:
    """Top-level names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def test_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_contract_needs_pydantic_yaml_and_packaging_only() -> None:
    allowed = CONTRACT_NEEDS | sys.stdlib_module_names
    files = [path for path in tracked_files() if shown(path).startswith("crds/rlhf_api/")]
    others = {
        f"{shown(path)}: {name}"
        for path in files
        if path.suffix == ".py"
        for name in imported(path)
        if name not in allowed
    }
    assert files and not others


@pytest.mark.parametrize(
    ("module", "kept_out"),
    [
        (
            "rlhf_cli.app",
            ("torch", "ray", "numpy", "transformers", "vllm", "kubernetes", "pydantic"),
        ),
        ("rlhf_cli.cluster.connect", ("kubernetes", "pydantic", "urllib3")),
        ("rlhf_kube.client", ("torch", "ray", "numpy", "transformers", "vllm")),
        ("rlhf_cli.cluster.fetching", ("torch", "ray", "numpy", "fsspec", "kubernetes")),
        ("rlhf_cli.manifests", ("torch", "ray", "numpy", "transformers", "vllm")),
        ("rlhf_cli.plan_tables", ("torch", "ray", "numpy", "transformers", "vllm")),
        ("rlhf_cli.plan_times", ("torch", "ray", "numpy", "transformers", "vllm")),
        ("rlhf_cli.planning", ("torch", "ray", "numpy", "transformers", "vllm")),
        ("rlhf_cli.profile_file", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_runtime.profiling.job_subjects", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_runtime.profiling.ranks", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_planner.plan", ("torch", "ray", "numpy", "transformers", "vllm")),
        ("rlhf_cli.preflight", ("torch", "ray", "transformers", "vllm", "datasets", "sympy")),
        ("rlhf_cli.local_run", ("torch", "transformers", "vllm", "sympy", "aiohttp")),
        ("rlhf_runtime.controller.job_run", ("torch", "transformers", "vllm")),
        ("rlhf_runtime.workers.data_host", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_runtime.workers.reward_host", ("torch", "transformers", "vllm", "sympy", "aiohttp")),
        (
            "rlhf_runtime.environments.episode_server",
            ("torch", "ray", "transformers", "vllm", "numpy", "pydantic", "yaml"),
        ),
        ("rlhf_runtime.environments.episodes", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_runtime.roles.role_classes", ("megatron",)),
        ("rlhf_runtime.rewards.scorer", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_runtime.telemetry.run_recorder", ("torch", "ray", "transformers", "vllm")),
        ("rlhf_runtime.telemetry.report", ("torch", "ray", "transformers", "vllm")),
    ],
)
def test_importing_a_light_module_stays_light(module: str, kept_out: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sorted({set(kept_out)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
