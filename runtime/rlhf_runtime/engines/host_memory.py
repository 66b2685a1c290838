"""Host memory: controls when glibc returns a process's free pages to the operating system."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, from glibc's malloc.h."""
KEPT_BYTES = 256 << 20
"""Free memory that a process keeps."""
MAPPED_BYTES = 32 << 20
"""Larger allocations are returned as soon as they are freed: the maximum of glibc's own dynamic
threshold."""


def keep_free_pages() -> None:
    """Keep free memory in a process that computes on a CPU, for its next pass."""
    # glibc would return it between passes: page faults then make a forward pass of a process that
    # has not trained yet up to twice as slow.
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def give_free_pages_back() -> None:
    """Return the free memory of this process to the operating system."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
