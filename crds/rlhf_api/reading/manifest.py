"""Manifests: from a file's text to frozen RLHFJobs, or to everything that is wrong with it.

The only way in for whatever people write. The operator, which gets its documents as JSON from the
API server, calls `validation` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.reading.overrides import apply_overrides, override_at, override_inside
from rlhf_api.reading.validation import validate_document
from rlhf_api.reading.yaml_documents import MAX_CHARACTERS, Document, read_documents
from rlhf_api.spec.job import KIND, RLHFJob

_MAX_BYTES = 4 * MAX_CHARACTERS


def load_file(path: str | Path, overrides: Sequence[str] = ()) -> list[RLHFJob]:
    """Load every job of a file.

    `overrides` are PATH=VALUE texts applied to each document before it is checked.
    Raises ManifestError with all problems of the file, OverrideError for an override that cannot be
    applied.
    """
    return load_jobs(decode(read_file(Path(path)), str(path)), str(path), overrides)


def load_jobs(text: str, source_name: str, overrides: Sequence[str] = ()) -> list[RLHFJob]:
    """Load every job of a text; `source_name` stands in messages for the file. See `load_file`."""
    documents, problems = read_documents(text, source_name)
    if not documents and not problems:
        do = f"write an RLHFJob; `rlhf explain` lists the fields of kind {KIND}"
        problems = [Problem((), "no document in it", file=source_name, line=1, column=1, do=do)]
    jobs: list[RLHFJob] = []
    seen: dict[tuple[str | None, str], int] = {}
    for document in documents:
        job, found = validate_document(apply_overrides(document.value, overrides))
        before = validate_document(document.value)[1] if found and overrides else found
        problems += [
            _placed(each, document, source_name, overrides, is_new=each not in before)
            for each in found
        ]
        if job is not None:
            jobs.append(job)
            problems += _repeated(job, document, source_name, seen)
    if problems:
        raise ManifestError(sorted(problems, key=lambda each: (each.line or 0, each.column or 0)))
    return jobs


def load_mixed(
    text: str, source_name: str, prepared: Callable[[Any], Any]
) -> list[tuple[int, Document, RLHFJob]]:
    """Load the jobs of a text in which other objects may stand, too.

    Args:
        text: of one or several documents.
        source_name: stands in messages for the file.
        prepared: a job's document as it is to be checked.

    Returns:
        Of each job the number of its document, that, and the job.

    Raises:
        ManifestError: the text is no YAML, there is no job in it, or one has problems.
    """
    documents, problems = read_documents(text, source_name)
    found = [(n, each) for n, each in enumerate(documents) if _is_job(each.value)]
    if not found and not problems:
        do = f"name a file with an object of kind {KIND}"
        problems = [Problem((), "no job in it", file=source_name, line=1, column=1, do=do)]
    jobs: list[tuple[int, Document, RLHFJob]] = []
    for number, document in found:
        job, wrong = validate_document(prepared(document.value))
        problems += [_placed(each, document, source_name, ()) for each in wrong]
        if job is not None:
            jobs.append((number, document, job))
    if problems:
        raise ManifestError(problems)
    return jobs


def _is_job(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == KIND


def locate_problems(
    error: ManifestError, path: str | Path, job: str, overrides: Sequence[str] = ()
) -> ManifestError:
    """Problems that were found in a job of a file after it was loaded, with their places in it.

    Args:
        error: what was found.
        path: the file, which was loaded.
        job: the job's name.
        overrides: with which it was loaded.
    """
    documents, _ = read_documents(decode(read_file(Path(path)), str(path)), str(path))
    for document in documents:
        value = apply_overrides(document.value, overrides)
        metadata = value.get("metadata") if isinstance(value, dict) else None
        if isinstance(metadata, dict) and metadata.get("name") == job:
            placed = [_placed(each, document, str(path), overrides) for each in error.problems]
            return ManifestError(placed)
    return error


def locate_overrides(
    error: ManifestError, source_name: str, overrides: Sequence[str]
) -> ManifestError:
    """Problems that were found in a job of a text that cannot be read again: which --set made each,
    or the text's name."""

    def placed(problem: Problem) -> Problem:
        cause = override_at(problem.location, overrides)
        return replace(problem, file=source_name if cause is None else f"--set {cause}")

    return ManifestError([placed(each) for each in error.problems])


def decode(content: bytes, source_name: str) -> str:
    """Decode a manifest's bytes. Raises ManifestError if they are too many or not UTF-8."""
    if len(content) > _MAX_BYTES:
        raise _unreadable(
            source_name,
            "too large for a manifest",
            got=f"more than {_MAX_BYTES} bytes",
            do="check that it is the right file",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = Problem(
            (),
            "not UTF-8",
            got=f"byte 0x{content[error.start]:02x}",
            do="save the file as UTF-8",
            file=source_name,
            line=line,
            column=column,
        )
        raise ManifestError([problem]) from error


def read_limited(stream: BinaryIO) -> bytes:
    """Read a manifest, but never much more than one may have; `decode` refuses a longer one."""
    return stream.read(_MAX_BYTES + 1)


def read_file(path: Path) -> bytes:
    """Read a manifest's file, as `read_limited` does. Raises ManifestError if it cannot be."""
    try:
        with path.open("rb") as file:
            return read_limited(file)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _unreadable(
            str(path), f"cannot be read: {reason}", do="check the path and its permissions"
        ) from error


def _unreadable(file: str, what: str, *, got: str = "", do: str) -> ManifestError:
    return ManifestError([Problem((), what, got=got, do=do, file=file)])


def _placed(
    problem: Problem,
    document: Document,
    file: str,
    overrides: Sequence[str],
    is_new: bool = False,
) -> Problem:
    """Say where in the file a problem is, or which override made it.

    is_new: whether it is not there without the overrides.
    """
    cause = override_at(problem.location, overrides)
    if cause is None and is_new:
        cause = override_inside(problem.location, overrides)
    if cause is not None:
        return replace(problem, file=f"--set {cause}")
    if is_new:
        given = " ".join(f"--set {each}" for each in overrides)
        problem = replace(problem, what=f"{problem.what} (with {given})")
    about_key = problem.what.startswith(("unknown field", "a key"))
    place = (document.key_position if about_key else document.value_position)(problem.location)
    return replace(problem, file=file, line=place.line, column=place.column)


def _repeated(
    job: RLHFJob,
    document: Document,
    file: str,
    seen: dict[tuple[str | None, str], int],
) -> list[Problem]:
    location = ("metadata", "name")
    place = document.value_position(location)
    first = seen.setdefault((job.metadata.namespace, job.name), place.line)
    if first == place.line:
        return []
    problem = Problem(
        location,
        "two jobs of the same name in a file",
        got=f"{job.name}, first in line {first}",
        do="rename one",
        file=file,
        line=place.line,
        column=place.column,
    )
    return [problem]
