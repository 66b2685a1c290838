"""Separation of the model's calls from the job: variables, network, limits, folder.

This is no sandbox. A tool runs as the job's user: it can read files and memory of that user's
processes, write where that user may write, and use all of the node's CPU. What is kept from it are
things that it would otherwise use by accident or at the model's first try: keys in environment
variables, tokens below the home folder, and the network. Linux only; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

# Variables that programs need to run. A list of what is allowed: keys have any name.
ALLOWED_VARIABLES = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
        *("OPENBLAS_NUM_THREADS", "USER", "LOGNAME", "TERM"),
    }
)
ALLOWED_PREFIX = "LC_"
# Needed only with a network.
PROXY_VARIABLES = frozenset(
    name
    for lower in ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
    for name in (lower, lower.upper())
)

# Source: linux/sched.h, linux/prctl.h.
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38


def tool_variables(
    environment: Mapping[str, str], further: Iterable[str], allow_network: bool
) -> dict[str, str]:
    """Return the environment variables that tools get.

    Args:
        environment: variables of this process.
        further: names of variables that the user lets tools have.
        allow_network: True if tools may reach the network.
    """
    names = ALLOWED_VARIABLES | set(further) | (PROXY_VARIABLES if allow_network else set())
    kept = {
        name: value
        for name, value in environment.items()
        if name in names or name.startswith(ALLOWED_PREFIX)
    }
    # The order of sets of texts must be the same when a conversation is rebuilt.
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}


def leave_network() -> str:
    """Move this process and its future children to a namespace without a network.

    Call it before the process has threads.

    Returns:
        The reason why it is impossible here; empty: it is done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return ""
    # Without rights of its own a process has them in a user namespace of its own.
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return os.strerror(ctypes.get_errno())
    try:
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        pass  # it appears as another user then; files are still checked against the real one
    return ""


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parents end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_rights() -> None:
    """Forbid this process and its future children to gain rights, and to write core files."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def confine(folder: Path, memory_bytes: int | None, keep_home: bool) -> None:
    """Limit this process, which is to run tools.

    Args:
        folder: created; its working folder, its home and the folder of its temporary files.
        memory_bytes: limit of its allocations; files that it maps and does not write do not count.
            None: no limit.
        keep_home: True if the user lets tools have the home folder.
    """
    forbid_new_rights()
    folder.mkdir(mode=0o700)
    os.chdir(folder)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    if not keep_home:
        os.environ["HOME"] = str(folder)
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        # The hard limit, too: a tool must not raise it.
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def reset_signals() -> None:
    """Give this process the default reactions to signals that its parent has changed."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def kill_group(leader: int) -> None:
    """Kill a process and its group; does nothing if it has ended."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It may not have made its group yet.
        try:
            os.kill(leader, signal.SIGKILL)
        except ProcessLookupError:
            return
