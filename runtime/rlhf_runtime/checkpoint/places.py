"""Where checkpoints lie: any address that fsspec understands, seen without caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

UNCACHED: Mapping[str, Any] = {"use_listings_cache": False}
"""Several processes write: what one has listed before says nothing."""


def place_of(address: str) -> tuple[AbstractFileSystem, str]:
    """The file system of an address, and the path in it."""
    fs, path = url_to_fs(address, **UNCACHED)
    return fs, path
