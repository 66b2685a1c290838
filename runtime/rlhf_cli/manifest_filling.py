"""Write into a manifest what planning needs without its code and models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem, path_text
from rlhf_api.reading.manifest import load_mixed
from rlhf_api.reading.yaml_documents import Document
from rlhf_api.reading.yaml_edits import CannotEdit, set_field
from rlhf_api.spec.algorithm_graph import AlgorithmGraph
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.atomic_file import write_atomically
from rlhf_cli.local_jobs import localize
from rlhf_cli.manifests import annotate_lines
from rlhf_cli.user_code import user_code
from rlhf_planner.problem.from_manifest import Filling, graph_to_fill, shapes_to_fill
from rlhf_sizing.config import hub_cache

TEMPLATE = "{{"
"""Start of a template expression, as Helm's."""


@dataclass(frozen=True)
class Filled:
    """A manifest text, and the changes that were made."""

    text: str
    changes: list[str]
    """A sentence for each field."""


def fill_text(text: str, shown: str, file: Path) -> Filled:
    """Fill in the fields that the jobs of a text lack.

    Args:
        text: one or several documents; those of other kinds are left as they are.
        shown: the file's name in messages.
        file: relative paths start at its folder; `-`: at the current folder.

    Raises:
        ManifestError: the text cannot be read or edited, or has problems.
        FlowError: a custom algorithm cannot be traced.
        PlanError: the dimensions of a model are unknown, or a graph does not fit.
    """
    try:
        jobs = load_mixed(text, shown, _without_graph)
    except ManifestError as error:
        # YAML's own message about `{{` would not help.
        if TEMPLATE in text:
            raise _problem(
                shown,
                "a template, which is no manifest yet",
                f"{TEMPLATE} ... }}}}",
                "render it first: helm template . | rlhf fill -",
            ) from error
        raise
    changes: list[str] = []
    for number, document, job in jobs:
        for filling in _fillings(job, document, file):
            try:
                text = set_field(text, number, filling.path, filling.value)
            except CannotEdit as error:
                raise _problem(
                    shown,
                    str(error),
                    "",
                    "write the field by hand, or the fields around it on lines of their own",
                ) from error
            changes.append(f"{job.name}: {path_text(filling.path)} ({filling.about})")
    return Filled(text, changes)


def _without_graph(value: Any) -> Any:
    """A job's document without algorithm.graph, which is derived again and may be invalid."""
    copy = deepcopy(value)
    spec = copy.get("spec")
    algorithm = spec.get("algorithm") if isinstance(spec, dict) else None
    if isinstance(algorithm, dict) and algorithm.get("type") == "Custom":
        algorithm.pop("graph", None)
    return copy


def _fillings(job: RLHFJob, document: Document, file: Path) -> Iterator[Filling]:
    """Fields that a job's document lacks, or whose values are outdated."""
    job = localize(job, file)
    with annotate_lines(file, job):
        yield from shapes_to_fill(job, hub_cache(os.environ, Path.home()))
        with user_code(job):
            graphs = list(graph_to_fill(job))
    written = document.value["spec"]["algorithm"].get("graph")
    yield from (filling for filling in graphs if not _is_same_graph(written, filling.value))


def _is_same_graph(written: Any, derived: Any) -> bool:
    """True if both graphs mean the same, however they are written."""
    try:
        return AlgorithmGraph.model_validate(written) == AlgorithmGraph.model_validate(derived)
    except ValueError:
        return False


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically; links are followed, permissions are kept.

    Raises:
        ManifestError: it cannot be written.
    """
    try:
        write_atomically(path, content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _problem(
            str(path),
            f"cannot be written: {reason}",
            "",
            "choose another file with --output, or --output - for standard output",
        ) from error


def _problem(shown: str, what: str, got: str, do: str) -> ManifestError:
    return ManifestError([Problem((), what, got=got, do=do, file=shown)])
