"""Where checkpoints lie: any address that fsspec understands, seen without caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from rlhf_runtime.errors import StorageUnusable

OBJECT_STORES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "memory", "s3", "s3a"})
"""Their folders are only names: to make one could make a bucket."""
S3_OPTIONS = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
"""s3fs tries five times by itself. With botocore's retries on top, a server that does not answer
would be waited for more than six minutes in every call."""


@dataclass(frozen=True)
class StorageLocation:
    """The file system of an address, and the path in it."""

    fs: AbstractFileSystem
    path: str
    is_local: bool
    """Whether files are on this machine, where folders can be renamed."""
    has_folders: bool
    """Whether a folder must be made before something is put into it."""


def resolve_storage(address: str) -> StorageLocation:
    """Where an address is.

    Raises:
        ValueError, ImportError: nobody knows its protocol, or its package is missing.
    """
    fs, path = url_to_fs(address, **filesystem_options(address))
    has_folders = get_protocol(address) not in OBJECT_STORES
    return StorageLocation(fs, path, isinstance(fs, LocalFileSystem), has_folders)


def require_persistent(address: str) -> None:
    """Check, without looking there, that what is saved at an address can be found again.

    Raises:
        StorageUnusable: it ends with the process, or has no protocol that is known here.
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
    """That nothing can be kept at an address."""
    return StorageUnusable(
        f"checkpoints cannot be kept there: got {address} ({type(error).__name__}: {error}), "
        "allowed a folder or an address that fsspec can read and write with the packages that are "
        "installed; correct spec.checkpoint.storage.uri, or install what the message names (for "
        "s3:// the extra s3)"
    )


def filesystem_options(address: str) -> dict[str, Any]:
    """What its file system is made with. What was listed before says nothing: others write too."""
    is_s3 = get_protocol(address) in ("s3", "s3a")
    return {"use_listings_cache": False, **(S3_OPTIONS if is_s3 else {})}
