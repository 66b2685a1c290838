"""Full disks: recognize their errors, and measure free space."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TypeVar

from rlhf_api.errors import RlhfError

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
# safetensors keeps the number of an error of the disk in its text only.
_SAFETENSORS_CODE = re.compile(r"\(os error (\d+)\)")
# Space for some steps' records and answers.
PROBE_BYTES = 16 << 20

Error = TypeVar("Error", bound=RlhfError)


def is_disk_full(error: BaseException | None) -> bool:
    """True if a full disk or an exhausted quota is the error, or has caused it."""
    while error is not None:
        if isinstance(error, RlhfError) and error.is_disk_full:
            return True
        if isinstance(error, OSError) and error.errno in FULL_ERRORS:
            return True
        code = _SAFETENSORS_CODE.search(str(error))
        if code is not None and int(code[1]) in FULL_ERRORS:
            return True
        error = error.__cause__
    return False


def with_cause(error: Error, *causes: BaseException) -> Error:
    """Return the error; `is_disk_full` follows from its causes."""
    # Causes are lost when Ray sends an error to another process; fields are not.
    error.is_disk_full = any(map(is_disk_full, causes))
    return error


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return the bytes that this user may still write to the disk of a path.

    Quotas do not count.

    Raises:
        OSError: there is no such path.
    """
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def require_space(folder: Path) -> None:
    """Check that the disk of a folder has space for what workers write.

    Raises:
        OSError: it is full. Other errors are left to the next one that writes.
    """
    probe = folder / ".space-probe"
    try:
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise
