"""Imports of trackers' libraries, which are installed by extras of the package."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from rlhf_runtime.telemetry.errors import TrackerMissing


def import_tracker_library(module: str, extra: str) -> Any:
    """Import a module of a tracker's library.

    Raises:
        TrackerMissing: it is not installed.
    """
    try:
        loaded: ModuleType = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_library(module.partition(".")[0], str(error.name), extra) from error
    return loaded


def missing_library(library: str, module: str, extra: str) -> TrackerMissing:
    """Build the error about a library that is not installed."""
    return TrackerMissing(
        f"a tracker's library is not installed: got no module {module} for {library}; "
        f"install it with `pip install 'rlhf-operator[{extra}]'` or remove "
        f"telemetry.{library} from the manifest"
    )
