"""`rlhf fill`: writes into a manifest what planning without its code and models needs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from rlhf_api.errors import ManifestError
from rlhf_api.exits import ExitCode
from rlhf_api.problems import Problem, path_text
from rlhf_api.reading.manifest import decode, load_mixed, read_file, read_limited
from rlhf_api.reading.yaml_documents import Document
from rlhf_api.reading.yaml_edits import CannotEdit, set_field
from rlhf_api.spec.algorithm_graph import AlgorithmGraph
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.local_jobs import localized
from rlhf_cli.user_code import user_code
from rlhf_cli.validate import STDIN, lines_of
from rlhf_planner.problem.from_manifest import Filling, graph_to_fill, shapes_to_fill
from rlhf_sizing.config import hub_cache

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TEMPLATE = "{{"
"""Where Helm, and others, put in what a text does not have yet."""


@dataclass(frozen=True)
class Filled:
    """A text, and what was written into it."""

    text: str
    told: list[str]
    """One sentence for each field."""


def fill_command(file: Path, output: Path | None, check: bool) -> None:
    """Fill in what a file's jobs lack, and say what that was.

    Args:
        file: manifests; `-` is standard input.
        output: the file for the result; `-` is standard output. None: the same file, of standard
            input standard output.
        check: whether nothing is written, and only said what would be.

    Raises:
        typer.Exit: with `check`, something would be.
        ManifestError: the file cannot be read, written or edited, or has problems.
        FlowError: a custom algorithm that cannot be traced.
        PlanError: a model whose dimensions nobody knows here, or a graph that does not fit.
    """
    shown = "<stdin>" if file == STDIN else str(file)
    content = read_limited(sys.stdin.buffer) if file == STDIN else read_file(file)
    filled = fill(decode(content, shown), shown, file)
    if check:
        for sentence in filled.told:
            typer.echo(f"{shown}: {sentence}: not filled in, or not up to date")
        if filled.told:
            typer.echo(f"run `rlhf fill {file}`")
            raise typer.Exit(ExitCode.MANIFEST)
        typer.echo(f"{shown}: nothing to fill in")
        return
    place = output or file
    if place == STDIN:
        sys.stdout.write(filled.text)
    elif filled.told or place != file:
        mark = BYTE_ORDER_MARK if content.startswith(BYTE_ORDER_MARK) else b""
        _replace(place, mark + filled.text.encode())
    for sentence in filled.told or ["nothing to fill in"]:
        typer.echo(f"{shown}: {sentence}", err=place == STDIN)


def fill(text: str, shown: str, file: Path) -> Filled:
    """A text of manifests with what its jobs lack.

    Args:
        text: of one or several documents; those of other kinds stay as they are.
        shown: stands in messages for the file.
        file: what relative paths in it are relative to; `-`: the current folder.

    Raises:
        ManifestError, FlowError, PlanError: as above.
    """
    try:
        jobs = load_mixed(text, shown, _without_graph)
    except ManifestError as error:
        if TEMPLATE in text:
            raise _problem(
                shown,
                "a template, which is no manifest yet",
                f"{TEMPLATE} ... }}}}",
                "render it first: helm template . | rlhf fill -",
            ) from error
        raise
    told: list[str] = []
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
            told.append(f"{job.name}: {path_text(filling.path)} ({filling.about})")
    return Filled(text, told)


def _without_graph(value: Any) -> Any:
    """A job's document without the graph that is made anew, whatever it says."""
    copy = deepcopy(value)
    spec = copy.get("spec")
    algorithm = spec.get("algorithm") if isinstance(spec, dict) else None
    if isinstance(algorithm, dict) and algorithm.get("type") == "Custom":
        algorithm.pop("graph", None)
    return copy


def _fillings(job: RLHFJob, document: Document, file: Path) -> Iterator[Filling]:
    """What a job's document does not say, or not any more."""
    job = localized(job, file)
    with lines_of(file, job):
        yield from shapes_to_fill(job, hub_cache(os.environ, Path.home()))
        with user_code(job):
            graphs = list(graph_to_fill(job))
    given = document.value["spec"]["algorithm"].get("graph")
    yield from (each for each in graphs if not _is_the_same(given, each.value))


def _is_the_same(given: Any, wanted: Any) -> bool:
    """Whether a graph says what it should, however it is written."""
    try:
        return AlgorithmGraph.model_validate(given) == AlgorithmGraph.model_validate(wanted)
    except ValueError:
        return False


def _replace(place: Path, content: bytes) -> None:
    """Write a file as a whole, where a link leads to; its permissions stay.

    Raises:
        ManifestError: it cannot be written.
    """
    unfinished: Path | None = None
    try:
        target = place.resolve()
        is_there = target.exists()
        if is_there:
            target.open("r+b").close()
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        unfinished = Path(name)
        with open(descriptor, "wb") as file:
            file.write(content)
        unfinished.chmod(target.stat().st_mode & 0o7777 if is_there else 0o644)
        unfinished.replace(target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _problem(
            str(place),
            f"cannot be written: {reason}",
            "",
            "choose another file with --output, or --output - for standard output",
        ) from error
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)


def _problem(shown: str, what: str, got: str, do: str) -> ManifestError:
    return ManifestError([Problem((), what, got=got, do=do, file=shown)])
