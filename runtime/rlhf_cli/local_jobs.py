"""Jobs of a manifest with absolute paths: relative ones are relative to the manifest's folder."""

from __future__ import annotations

import glob
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_api.changes import differences, spec_document
from rlhf_api.errors import ManifestError
from rlhf_api.problems import FieldPath, Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.manifests import STDIN, annotate_lines, read_jobs

DATA_PATHS = (
    ("data", "*", "path"),
    ("data", "*", "paths", "*"),
    ("data", "*", "sources", "*", "path"),
    ("data", "*", "sources", "*", "paths", "*"),
)
"""Paths that may be patterns of files."""
PATHS = (
    ("code", "local"),
    *DATA_PATHS,
    ("models", "*", "source", "path"),
    ("rewards", "*", "model", "path"),
)
"""Fields of spec with a path of a file or folder; `*` stands for any name or index."""
TRACKING = ("telemetry", "mlflow", "trackingUri")
"""A path unless it is an address."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|databricks$")


def local_jobs(file: Path, overrides: Sequence[str] = ()) -> list[RLHFJob]:
    """Load the jobs of a file, or of standard input for `-`, with absolute paths.

    Args:
        file: the manifest. Relative paths, also those of overrides, start at its folder; for a
            link, at the link's folder; for standard input, at the current folder.
        overrides: PATH=VALUE texts of --set.

    Raises:
        ManifestError: the file has problems.
        OverrideError: an override cannot be applied.
    """
    return [localize(job, file, overrides) for job in read_jobs(file, overrides)]


def localize(job: RLHFJob, file: Path, overrides: Sequence[str] = ()) -> RLHFJob:
    """Make the paths of a loaded job absolute.

    Args:
        job: as loaded.
        file: the manifest.
        overrides: PATH=VALUE texts of --set with which it was loaded.

    Raises:
        ManifestError: a path starts with the home of an unknown user.
    """
    # abspath keeps a link's own folder, where resolve() of the file would follow the link.
    folder = Path.cwd() if file == STDIN else Path(os.path.abspath(file)).parent.resolve()
    with annotate_lines(file, job, overrides):
        return with_absolute_paths(job, folder)


def with_absolute_paths(job: RLHFJob, folder: Path) -> RLHFJob:
    """Make the paths of a job absolute.

    Args:
        job: as written.
        folder: absolute; relative paths start there.

    Raises:
        ManifestError: a path starts with the home of an unknown user.
    """
    # The model is frozen, so its document is changed and validated again.
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    problems: list[Problem] = []
    for pattern in (*PATHS, TRACKING):
        for holder, key, location in _matches(document["spec"], pattern, ("spec",)):
            path = os.path.expanduser(holder[key])
            # MLflow accepts addresses in the same field.
            if pattern == TRACKING and ADDRESS.match(path):
                continue
            if path.startswith("~"):
                problems.append(_unknown_home(path, location))
            # Characters of a pattern in the folder's own name are none.
            is_pattern = pattern in DATA_PATHS and glob.has_magic(path)
            holder[key] = absolute(path, Path(glob.escape(str(folder))) if is_pattern else folder)
    if problems:
        raise ManifestError(problems)
    return RLHFJob.model_validate(document)


def _unknown_home(path: str, location: FieldPath) -> Problem:
    """The problem of a path with an unknown `~NAME`."""
    return Problem(
        location,
        "starts with the home of a user that does not exist on this machine",
        got=path,
        allowed="~/ for your own home, ~NAME/ for another user's",
        do="correct the name; a file of such a name is ./~NAME",
    )


def with_resolved_paths(before: Mapping[str, Any], job: RLHFJob) -> Mapping[str, Any]:
    """Make relative paths of an earlier spec absolute where the job has the same ones.

    Args:
        before: the earlier spec's document. Runs store it as written.
        job: with absolute paths.
    """
    resolved = deepcopy(dict(before))
    # Runs store their manifest as written. Without this, the same relative path would count as a
    # change on every resume.
    for path, old, new in list(differences(resolved, spec_document(job.spec))):
        if any(map(partial(_fits, path), (*PATHS, TRACKING))) and isinstance(old, str):
            is_relative = not Path(old).is_absolute()
            if is_relative and str(new).endswith(f"/{os.path.normpath(old)}"):
                holder: Any = resolved
                for name in path[:-1]:
                    holder = holder[name]
                holder[path[-1]] = new
    return resolved


def _fits(path: Sequence[str | int], pattern: Sequence[str]) -> bool:
    return len(path) == len(pattern) and all(
        part in ("*", name) for name, part in zip(path, pattern, strict=True)
    )


def absolute(path: str, folder: Path) -> str:
    """Join a path to a folder without links; a leading `..` is resolved."""
    # A `..` further on stays: a link may stand before it.
    names = list(Path(path).parts)
    while names and names[0] == os.pardir:
        folder = folder.parent
        del names[0]
    return str(folder.joinpath(*names))


def _matches(
    node: Any, pattern: Sequence[str], location: FieldPath
) -> Iterator[tuple[Any, Any, FieldPath]]:
    """Yield the container, its key, and the location in the document of every value that a pattern
    matches."""
    if not isinstance(node, dict | list):
        return
    first, *rest = pattern
    keys: list[Any] = [first]
    if first == "*":
        keys = list(range(len(node))) if isinstance(node, list) else list(node)
    for key in keys:
        value = node.get(key) if isinstance(node, dict) else node[key]
        if value is None:
            continue
        if rest:
            yield from _matches(value, rest, (*location, key))
        else:
            yield node, key, (*location, key)
