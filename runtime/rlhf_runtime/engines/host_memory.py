"""Pages of a process's own memory: when the operating system has them back."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""
KEPT_BYTES = 256 << 20
"""Of free memory that a process keeps."""
MAPPED_BYTES = 32 << 20
"""Allocations of so many are given back at once: the largest bound that glibc itself arrives at."""


def keep_free_pages() -> None:
    """Keep memory that is free, for what computes on a CPU: a pass of a model takes what the one
    before has freed. glibc otherwise gives it back in between, and a forward pass of a process that
    has not trained yet takes up to twice as long for the faults of its pages."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def give_free_pages_back() -> None:
    """Let the operating system have the memory that this process no longer uses."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
