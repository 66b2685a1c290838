"""Which files say what the cluster is, in kubectl's order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def kubeconfig_files(
    named: Path | None, environment: Mapping[str, str], home: Path
) -> tuple[Path, ...]:
    """The files that are merged, whether they exist or not; earlier ones win.

    Args:
        named: what --kubeconfig says.
        environment: this process's variables.
        home: the user's folder.
    """
    if named is not None:
        return (named,)
    listed = [each for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]
    if listed:
        return tuple(Path(each).expanduser() for each in listed)
    return (home / ".kube" / "config",)
