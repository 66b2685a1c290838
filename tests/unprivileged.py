"""Permissions that hold for root, too, as for other users who run the tests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522
"""Version of the structures. Source: capget(2), _LINUX_CAPABILITY_VERSION_3."""
OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH. Source: linux/capability.h."""


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Drop root's right to ignore permissions of files, in this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable ones, twice 32

    def call(function: str) -> None:
        if getattr(libc, function)(header, sets):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    call("capget")
    before = sets[0]
    sets[0] = before & ~OVERRIDES
    call("capset")
    try:
        yield
    finally:
        sets[0] = before
        call("capset")
