"""A fork server that stays between runs on a machine: started by `rlhf standby`, used by `rlhf
run`.

Its name is a digest of what it has imported and read, and of its limits and rights. So a run finds
only a server whose workers equal those that the run would start by itself.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from rlhf_api.spec.resources import Device
from rlhf_runtime.forkserver import launcher
from rlhf_runtime.forkserver.client import ForkServer, OwnForkServer

PREFIX = "rlhf-standby"
# Meaning of the parts of a name, after the prefix.
NAME_PARTS = (
    "another device",
    "other code or packages",
    "other variables that libraries read when they start",
    "other rights, limits, cores or priority",
)
# The sockets that listen on this machine.
SOCKETS = Path("/proc/net/unix")
# Our packages that a fork server imports.
PACKAGES = ("rlhf_api", "rlhf_flow", "rlhf_sizing", "rlhf_runtime")
# Folders that change whenever a package is installed.
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
# Any text: commands share a server only with those that have the same.
VARIABLE = "RLHF_STANDBY"
# Prefixes of variables that Python and libraries read when they start.
IMPORT_TIME_VARIABLES = (
    "CUDA_", "FLASHINFER_", "FSSPEC_", "GLIBC_", "GLOO_", "GOMP_", "HF_", "HOME", "KMP_", "LANG",
    "LC_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NUMEXPR_", "NVIDIA_", "OMP_", "OPENBLAS_",
    "PROTOCOL_BUFFERS_", "PYTHON", "PYTORCH_", "SAFETENSORS_", "TMPDIR", "TOKENIZERS_", "TORCH",
    "TRANSFORMERS_", "TRITON_", "TZ", "VLLM_", "XDG_CACHE",
)  # fmt: skip
# Lines of Linux's /proc/PID/status that a process inherits.
INHERITED_STATUS_LINES = (
    "Uid", "Gid", "Groups", "Umask", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed_list",
    "Mems_allowed_list",
)  # fmt: skip
# Files of a control group.
GROUP_LIMITS = ("cpu.max", "memory.high", "memory.max", "pids.max")
GROUPS = Path("/sys/fs/cgroup")


class StandbyForkServer:
    """A server of another command. If it dies, workers import by themselves."""

    def __init__(self, name: str) -> None:
        self.name = name

    def revive(self) -> None:
        """Do nothing: its owner restarts it."""

    def close(self) -> None:
        """Do nothing: it ends a raylet's workers with the raylet."""


def name_for(device: Device) -> str:
    """Return the name of the server that this process may share.

    Raises:
        OSError: facts of the process cannot be read.
    """
    parts = (_files(), _variables(), _inherited())
    return "-".join([PREFIX, device.value, *map(_digest, parts)])


def describe_other_servers(name: str) -> list[str]:
    """Describe how each other standby server on this machine differs from the named one."""
    listening = {
        line.rpartition("@")[2] for line in SOCKETS.read_text().splitlines() if "@" in line
    }
    others = sorted(
        server for server in listening if server.startswith(f"{PREFIX}-") and server != name
    )
    return [_difference(name.split("-")[2:], other.split("-")[2:]) for other in others]


def _difference(own: list[str], other: list[str]) -> str:
    differing = [
        words for words, ours, theirs in zip(NAME_PARTS, own, other, strict=False) if ours != theirs
    ]
    return " and ".join(differing) or "another release"


def _digest(facts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(fact.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()[:16]


def is_listening(name: str) -> bool:
    """True if a server of that name listens."""
    try:
        launcher.connect(name).close()
    except OSError:
        return False
    return True


def choose_fork_server(device: Device, may_share: bool) -> tuple[ForkServer, str]:
    """Return the standby server, if there is one and it may be shared; else a server of this
    process.

    Args:
        device: of the workers.
        may_share: libraries may stay in memory all the time.

    Returns:
        The server, and a notice for the user; empty: none.
    """
    if not may_share:
        return OwnForkServer(device), ""
    try:
        name = name_for(device)
        if is_listening(name):
            return StandbyForkServer(name), "workers are forked from `rlhf standby`"
        strangers = describe_other_servers(name)
    except OSError:
        strangers = []
    if not strangers:
        return OwnForkServer(device), ""
    return OwnForkServer(device), (
        f"a `rlhf standby` is there, started with {strangers[0]} than this run: start it again as "
        "this run is started; until then workers import by themselves"
    )


def _variables() -> Iterator[str]:
    for name in sorted(os.environ):
        if name.startswith((VARIABLE, *IMPORT_TIME_VARIABLES)):
            yield f"{name}={os.environ[name]}"
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        yield str(Path(folder).absolute())


def _files() -> Iterator[str]:
    # The folder's time stamp stands for all packages in it.
    for folder in map(Path, sys.path):
        if folder.name in PACKAGE_FOLDERS:
            yield _last_change(folder)
    for package in PACKAGES:
        spec = find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            for file in sorted(Path(location).rglob("*.py")):
                yield _last_change(file)


def _last_change(path: Path) -> str:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return f"{path} -"  # an editor's lock, a checkout meanwhile
    return f"{path} {facts.st_mtime_ns} {facts.st_size}"


def _inherited() -> Iterator[str]:
    """Yield inherited properties besides the environment: namespaces, rights, limits."""
    own = Path("/proc/self")
    yield from (os.readlink(namespace) for namespace in sorted((own / "ns").iterdir()))
    yield (own / "limits").read_text()
    yield str(os.getpriority(os.PRIO_PROCESS, 0))
    for line in (own / "status").read_text().splitlines():
        if line.startswith(INHERITED_STATUS_LINES):
            yield line
    yield from _group_limits((own / "cgroup").read_text())


def _group_limits(groups: str) -> Iterator[str]:
    """Yield the limits of a process's control groups.

    groups: text of /proc/PID/cgroup; groups of version 1 are taken as they are.
    """
    for line in groups.splitlines():
        number, _, path = line.split(":", 2)
        if number != "0":
            yield line
            continue
        group = GROUPS / path.lstrip("/")
        for folder in (group, *group.parents):
            for name in GROUP_LIMITS:
                file = folder / name
                # Limits, not names: names differ between terminals.
                if file.is_file() and "max" not in (limit := file.read_text()).split()[:1]:
                    yield f"{name} {limit}"
            if folder == GROUPS:
                break
