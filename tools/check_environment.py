"""Checks that this machine can run rlhf; lists all that is missing, at once.

python tools/check_environment.py             before packages are installed
python tools/check_environment.py --installed after: without the space for them

Exit code 4 if something is missing.
"""

# Only the standard library: this program runs before anything is installed.

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
MIB = 2**20

# Measured: 7 GiB.
INSTALL_BYTES = 8 * GIB
"""Packages with their compiled files, and a few runs."""
RUN_BYTES = GIB
"""Models, logs and spilled batches of a few runs."""
# Measured: 2.5 GiB, and 1 GiB more for a second rank.
MEMORY_BYTES = 4 * GIB
"""The driver, one rank, its helpers and Ray."""
# Ray's object store takes 256 MiB.
SHARED_MEMORY_BYTES = 512 * MIB
"""Ray's object store and shared memory of vLLM's ranks."""
LIBRARIES = {
    "libnuma.so.1": "apt-get install libnuma1, or dnf install numactl-libs",
    "libstdc++.so.6": "apt-get install libstdc++6, or dnf install libstdc++",
}
"""Shared libraries that vLLM links to and does not contain, with commands that install them."""
# The contract's own exit code; its package may not be installed yet.
RETRIABLE = 4
"""Exit code if something is missing."""


def problems(installed: bool) -> Iterator[str]:
    """Yield a sentence per missing thing: what, got, allowed, do."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        yield (
            f"Python: got {platform.python_version()}, allowed 3.11 and 3.12; install one of them, "
            "or name it: make setup PYTHON=/path/to/python3.11"
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield (
            f"machine: got {platform.system()} on {platform.machine()}, allowed Linux on x86_64 "
            "(vLLM's packages are built for it); use a Linux machine, a container or WSL 2"
        )
        return  # the other checks read files of Linux
    yield from _processor()
    yield from _libraries()
    yield from _disk(installed)
    yield from _memory()
    yield from _shared_memory()


def _processor() -> Iterator[str]:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    if " avx2" not in flags:
        yield "processor: got one without AVX2, which vLLM's CPU build needs; use a newer machine"
    library, version = platform.libc_ver()
    if library == "glibc" and tuple(map(int, version.split("."))) >= (2, 28):
        return
    yield (
        f"C library: got {library or 'not glibc'} {version}, allowed glibc 2.28 or newer; use "
        "Debian 10, Ubuntu 20.04, RHEL 8 or newer (Alpine does not work)"
    )


def _libraries() -> Iterator[str]:
    for name, remedy in LIBRARIES.items():
        try:
            # The loader's own search, with its cache and paths.
            ctypes.CDLL(name)
        except OSError:
            yield f"library: {name} is missing, and vLLM needs it; {remedy}"


def _disk(installed: bool) -> Iterator[str]:
    needed = RUN_BYTES if installed else INSTALL_BYTES
    free = shutil.disk_usage(ROOT).free
    if free < needed:
        yield (
            f"disk: got {_gib(free)} free at {ROOT}, needed {_gib(needed)}; free some, or clone "
            "to a larger disk"
        )
    if not os.access(ROOT, os.W_OK):
        yield f"disk: {ROOT} cannot be written; use a clone of your own"
    if not installed:
        yield from _cache()


def _cache() -> Iterator[str]:
    cache = _cache_folder()
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        yield (
            f"package cache: {cache} cannot be written; name another folder: "
            "export UV_CACHE_DIR=/path/to/cache"
        )
        return
    free = shutil.disk_usage(folder).free
    # uv unpacks into its cache and links from there; across file systems it copies.
    if folder.stat().st_dev != ROOT.stat().st_dev and free < INSTALL_BYTES:
        yield (
            f"package cache: got {_gib(free)} free at {cache}, needed {_gib(INSTALL_BYTES)}; free "
            "some, or name another folder: export UV_CACHE_DIR=/path/to/cache"
        )


def _cache_folder() -> Path:
    # The order in which uv itself looks.
    configured = os.environ.get("UV_CACHE_DIR")
    if configured:
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()).absolute() / "uv"


def _memory() -> Iterator[str]:
    free = min(_available_memory(), _container_memory())
    if free < MEMORY_BYTES:
        yield (
            f"memory: got {_gib(free)} available, needed {_gib(MEMORY_BYTES)}; end other "
            "programs, or give the container more"
        )


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def _container_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Free memory below the container's limit."""
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return sys.maxsize
        used = int((group / "memory.current").read_text(encoding="ascii"))
        statistics = (group / "memory.stat").read_text(encoding="ascii").split()
        # The kernel drops cached files when memory is short, so they count as free.
        files = int(statistics[statistics.index("inactive_file") + 1])
    except (OSError, ValueError):
        return sys.maxsize  # no container, or version 1 of control groups
    return int(limit) - used + files


def _shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[str]:
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free < SHARED_MEMORY_BYTES:
        yield (
            f"shared memory: got {free // MIB} MiB free in {folder}, needed "
            f"{SHARED_MEMORY_BYTES // MIB} MiB; docker run --shm-size=1g, or "
            "mount -o remount,size=1g /dev/shm"
        )


def _gib(number: int) -> str:
    return f"{number / GIB:.1f} GiB"


def main() -> int:
    """Print what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check that this machine can run rlhf.")
    parser.add_argument("--installed", action="store_true", help="packages are there already")
    installed: bool = parser.parse_args().installed
    missing = list(problems(installed))
    for problem in missing:
        print(f"missing: {problem}", file=sys.stderr)
    if missing:
        count = "1 thing is" if len(missing) == 1 else f"{len(missing)} things are"
        print(f"{count} missing on this machine; nothing was changed.", file=sys.stderr)
    return RETRIABLE if missing else 0


if __name__ == "__main__":
    sys.exit(main())
