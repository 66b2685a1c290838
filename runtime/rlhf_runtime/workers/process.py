"""First steps of every worker process: parent death signal, log file, threads, environment."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_runtime.end_with_parent import end_with_raylet
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.telemetry.json_log import JsonLines, log_fields
from rlhf_runtime.workers.libraries import prepare_environment
from rlhf_runtime.workers.log_limit import limit_log

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def configure_process(log_file: Path, num_threads: int, python_path: PythonPath) -> None:
    """Redirect all output of the process to its log file and prepare numerical work.

    Must run before the user's code is imported. From here on the process ends with its raylet.
    """
    # Ray's own mechanism needs a running thread, which a hanging process does not have.
    end_with_raylet()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # Descriptors instead of sys.stdout: libraries in C write there, too.
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    limit_log(log_file)
    handler = logging.StreamHandler(sys.stderr)
    fields = log_fields(os.environ)
    handler.setFormatter(
        logging.Formatter(FORMAT)
        if fields is None
        else JsonLines({**fields, "worker": log_file.stem})
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    faulthandler.enable()
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    prepare_environment()
    python_path.add_to(sys.path)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's garbage collector at the end of a process, also for calls by libraries."""
    # The kernel frees the memory at once. A collection would visit every object of the libraries,
    # and copy the pages that the process shares with its fork server.
    collect, unfreeze = gc.collect, gc.unfreeze
    setattr(gc, "collect", lambda generation=2: 0)  # noqa: B010  # a module's name
    setattr(gc, "unfreeze", lambda: None)  # noqa: B010
    try:
        yield
    finally:
        setattr(gc, "collect", collect)  # noqa: B010
        setattr(gc, "unfreeze", unfreeze)  # noqa: B010


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process and its container may use, at least one.

    Args:
        root: of the file system; tests use another one.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(root / "sys/fs/cgroup")
    return max(1, cores if quota is None else min(cores, round(quota)))


def _cgroup_quota(cgroup: Path) -> float | None:
    """Return the container's limit in cores; None if it has none."""
    try:
        if (limit := cgroup / "cpu.max").is_file():
            quota, period = limit.read_text().split()
        else:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return float(quota) / float(period) if quota.isdecimal() and int(period) > 0 else None


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(statm, 256).split()[1]) * resource.getpagesize()
    finally:
        os.close(statm)
