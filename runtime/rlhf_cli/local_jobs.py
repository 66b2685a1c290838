"""Jobs of a manifest for this machine: relative paths in it mean the manifest's folder."""

from __future__ import annotations

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
from rlhf_cli.validate import STDIN, jobs_of, lines_of

PATHS = (
    ("code", "local"),
    ("data", "*", "path"),
    ("models", "*", "source", "path"),
    ("rewards", "*", "model", "path"),
)
"""Fields of spec that hold a path of a file or folder; `*` for any name or entry of a list."""
TRACKING = ("telemetry", "mlflow", "trackingUri")
"""A folder, where it is no address."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|databricks$")


def local_jobs(file: Path, overrides: Sequence[str] = ()) -> list[RLHFJob]:
    """Load the jobs of a file, or of standard input for `-`, with absolute paths.

    Args:
        file: the manifest. What is relative in it, or in an override, means its folder, for a link
            the link's; in standard input the current one.
        overrides: PATH=VALUE texts of --set.

    Raises:
        ManifestError: the file has problems.
        OverrideError: an override that cannot be applied.
    """
    return [localized(job, file, overrides) for job in jobs_of(file, overrides)]


def localized(job: RLHFJob, file: Path, overrides: Sequence[str] = ()) -> RLHFJob:
    """A job of a file, or of standard input for `-`, with absolute paths.

    Args:
        job: as it was loaded.
        file: the manifest.
        overrides: PATH=VALUE texts of --set with which it was loaded.

    Raises:
        ManifestError: a path begins with the home of nobody.
    """
    folder = Path.cwd() if file == STDIN else Path(os.path.abspath(file)).parent.resolve()
    with lines_of(file, job, overrides):
        return with_absolute_paths(job, folder)


def with_absolute_paths(job: RLHFJob, folder: Path) -> RLHFJob:
    """The same job with paths that mean the same from every folder.

    Args:
        job: as it was written.
        folder: what its relative paths mean; absolute.

    Raises:
        ManifestError: a path begins with the home of nobody.
    """
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    problems: list[Problem] = []
    for pattern in (*PATHS, TRACKING):
        for holder, key, location in _found(document["spec"], pattern, ("spec",)):
            path = os.path.expanduser(holder[key])
            if pattern == TRACKING and ADDRESS.match(path):
                continue
            if path.startswith("~"):
                problems.append(_homeless(path, location))
            holder[key] = absolute(path, folder)
    if problems:
        raise ManifestError(problems)
    return RLHFJob.model_validate(document)


def _homeless(path: str, location: FieldPath) -> Problem:
    """A path whose `~` the system cannot replace."""
    return Problem(
        location,
        "begins with the home of a user whom this machine does not know",
        got=path,
        allowed="~/ for your own home, ~NAME/ for another user's",
        do="correct the name; a file of such a name is ./~NAME",
    )


def with_places(before: Mapping[str, Any], job: RLHFJob) -> Mapping[str, Any]:
    """An earlier spec whose relative paths are absolute where the job has the same one: runs have
    kept them as they were written.

    Args:
        before: its document.
        job: with absolute paths.
    """
    kept = deepcopy(dict(before))
    for path, old, new in list(differences(kept, spec_document(job.spec))):
        if any(map(partial(_is_at, path), (*PATHS, TRACKING))) and isinstance(old, str):
            is_relative = not Path(old).is_absolute()
            if is_relative and str(new).endswith(f"/{os.path.normpath(old)}"):
                holder: Any = kept
                for name in path[:-1]:
                    holder = holder[name]
                holder[path[-1]] = new
    return kept


def _is_at(path: Sequence[str | int], pattern: Sequence[str]) -> bool:
    return len(path) == len(pattern) and all(
        part in ("*", name) for name, part in zip(path, pattern, strict=True)
    )


def absolute(path: str, folder: Path) -> str:
    """A path relative to a folder without links, without `..` at its beginning; further on, where a
    link may stand before it, it stays."""
    names = list(Path(path).parts)
    while names and names[0] == os.pardir:
        folder = folder.parent
        del names[0]
    return str(folder.joinpath(*names))


def _found(
    node: Any, pattern: Sequence[str], location: FieldPath
) -> Iterator[tuple[Any, Any, FieldPath]]:
    """Maps and lists with a value that a pattern leads to, where in them it is, and where in the
    document."""
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
            yield from _found(value, rest, (*location, key))
        else:
            yield node, key, (*location, key)
