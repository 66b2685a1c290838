"""Storage of checkpoints: any address that fsspec understands, accessed without caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from rlhf_runtime.errors import StorageUnusable

# Their folders are only name prefixes.
OBJECT_STORES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "s3", "s3a"})
# One attempt per request of botocore, as s3fs itself tries five times. With both retries, each call
# would wait more than six minutes for a server that does not answer.
S3_OPTIONS = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}


@dataclass(frozen=True)
class StorageLocation:
    """The file system of an address, and the path in it."""

    fs: AbstractFileSystem
    path: str
    is_local: bool
    """True for files on this machine, whose folders can be renamed."""
    has_folders: bool
    """True if a folder must be created before its files."""


def resolve_storage(address: str) -> StorageLocation:
    """Resolve an address to its file system and path.

    Raises:
        ValueError, ImportError: the protocol is not supported, or its package is missing.
    """
    fs, path = url_to_fs(address, **filesystem_options(address))
    # In an object store, creating a folder could create a bucket.
    has_folders = get_protocol(address) not in OBJECT_STORES
    return StorageLocation(fs, path, isinstance(fs, LocalFileSystem), has_folders)


def require_persistent(address: str) -> None:
    """Check, without access, that data saved at an address outlives the process.

    Raises:
        StorageUnusable: it ends with the process, or the protocol is not supported here.
    """
    protocol, _, path = address.rpartition("://")
    if protocol == "memory":
        raise storage_unusable(address, ValueError("it ends with the process"))
    if protocol in ("file", "local") and not path.startswith("/"):
        why = "it depends on the folder in which the command is given; write file:///..."
        raise storage_unusable(address, ValueError(why))
    try:
        resolve_storage(address)
    except Exception as error:  # no such protocol, no package for it
        raise storage_unusable(address, error) from error


def storage_unusable(address: str, error: BaseException) -> StorageUnusable:
    """Return the error for an address that cannot store checkpoints."""
    return StorageUnusable(
        f"checkpoints cannot be kept there: got {address} ({type(error).__name__}: {error}), "
        "allowed a folder or an address that fsspec can read and write with the packages that are "
        "installed; correct spec.checkpoint.storage.uri, or install what the message names (for "
        "s3:// the extra s3)"
    )


def filesystem_options(address: str) -> dict[str, Any]:
    """Return the options of an address's file system."""
    is_s3 = get_protocol(address) in ("s3", "s3a")
    # Other processes write, too: a listing may be outdated at once.
    return {"use_listings_cache": False, **(S3_OPTIONS if is_s3 else {})}
