"""A fork server that stays between runs on a machine: `rlhf standby` has it, `rlhf run` finds it.

Its name tells what it has imported and read, and what the kernel allows it: a run finds one only
whose workers are as those that it would start by itself.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rlhf_api.resources import Device
from rlhf_runtime.forkserver import launcher
from rlhf_runtime.forkserver.client import ForkServer, Server

PACKAGES = ("rlhf_api", "rlhf_flow", "rlhf_runtime")
"""Ours that a fork server imports."""
VARIABLE = "RLHF_STANDBY"
"""Any text: commands share a server only with those that have the same."""
READ_AT_IMPORT = (
    "CUDA_", "GLOO_", "HF_", "HOME", "KMP_", "LD_", "MKL_", "NCCL_", "NUMEXPR_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "PYTHON", "PYTORCH_", "SAFETENSORS_", "TMPDIR", "TOKENIZERS_", "TORCH",
    "TRANSFORMERS_", "TRITON_", "VLLM_", "XDG_CACHE",
)  # fmt: skip
"""How the names begin of variables that libraries read when they are imported."""


RIGHTS = (
    "Uid", "Gid", "Groups", "Umask", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed_list",
    "Mems_allowed_list",
)  # fmt: skip
"""Of Linux's /proc/PID/status."""


class StandingServer:
    """A server that is another command's. If that ends, workers import by themselves."""

    def __init__(self, name: str) -> None:
        self.name = name

    def revive(self) -> None:
        """Nothing: its owner starts it again."""

    def close(self) -> None:
        """Nothing: it ends a raylet's workers with the raylet."""


def name_for(device: Device) -> str:
    """The name of the server that a run may share that is started as this process was."""
    found = hashlib.sha256()
    for fact in (device.value, *_variables(), *_files(), *_rights()):
        found.update(fact.encode(errors="surrogateescape") + b"\0")
    return f"rlhf-standby-{found.hexdigest()[:32]}"


def stands(name: str) -> bool:
    """Whether a server of that name listens."""
    try:
        launcher.connect(name).close()
    except OSError:
        return False
    return True


def server_for(device: Device, may_share: bool) -> Server:
    """The standing server, if there is one and it may be shared; else one of this process's own.

    Args:
        device: of the workers.
        may_share: whether libraries may stay in memory all the time.
    """
    name = name_for(device) if may_share else ""
    return StandingServer(name) if name and stands(name) else ForkServer(device)


def _variables() -> Iterator[str]:
    for name in sorted(os.environ):
        if name.startswith((VARIABLE, *READ_AT_IMPORT)):
            yield f"{name}={os.environ[name]}"


def _files() -> Iterator[str]:
    """Our code, and the folder that changes whenever a package is installed."""
    installed = Path(sysconfig.get_path("purelib"))
    yield f"{installed} {installed.stat().st_mtime_ns}"
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for file in sorted(Path(folder).rglob("*.py")):
                facts = file.stat()
                yield f"{file} {facts.st_mtime_ns} {facts.st_size}"


def _rights() -> Iterator[str]:
    """What processes inherit that does not stand in the environment: namespaces, groups, limits."""
    own = Path("/proc/self")
    yield from (os.readlink(namespace) for namespace in sorted((own / "ns").iterdir()))
    yield from ((own / name).read_text() for name in ("cgroup", "limits"))
    yield str(os.getpriority(os.PRIO_PROCESS, 0))
    for line in (own / "status").read_text().splitlines():
        if line.startswith(RIGHTS):
            yield line
