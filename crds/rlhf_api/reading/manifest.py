"""Manifests: from the text of a file to frozen RLHFJobs, or to all of its problems.

The only entry for manifests that people write. The operator gets JSON from the API server and calls
`validation` itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from rlhf_api.api_names import KIND
from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.reading.overrides import apply_overrides, override_at, override_inside
from rlhf_api.reading.validation import validate_document
from rlhf_api.reading.yaml_documents import MAX_CHARACTERS, Document, read_documents
from rlhf_api.reading.yaml_scalars import kubectl_scalar, plain_scalar
from rlhf_api.spec.job import RLHFJob

_MAX_BYTES = 4 * MAX_CHARACTERS


def load_file(
    path: str | Path, overrides: Sequence[str] = (), *, is_generated: bool = False
) -> list[RLHFJob]:
    """Load every job of a file.

    Args:
        path: of the file.
        overrides: PATH=VALUE texts, applied to each document before it is checked.
        is_generated: True if the operator or a run wrote the file, which nobody applies again.

    Raises:
        ManifestError: all problems of the file.
        OverrideError: an override cannot be applied.
    """
    text = decode(read_file(Path(path)), str(path))
    return load_jobs(text, str(path), overrides, is_generated=is_generated)


def load_jobs(
    text: str, source_name: str, overrides: Sequence[str] = (), *, is_generated: bool = False
) -> list[RLHFJob]:
    """Load every job of a text, as `load_file`; messages show `source_name` as the file."""
    documents, problems = read_documents(text, source_name)
    if not documents and not problems:
        do = f"write an RLHFJob; `rlhf explain` lists the fields of kind {KIND}"
        problems = [Problem((), "no document in it", file=source_name, line=1, column=1, do=do)]
    jobs: list[RLHFJob] = []
    seen: dict[tuple[str | None, str], int] = {}
    for document in documents:
        job, errors = validate_document(apply_overrides(document.value, overrides))
        if not is_generated:
            problems += _ambiguous_words(document, source_name)
            # Such a word may also be of the wrong type; one message is enough.
            errors = [error for error in errors if error.location not in document.ambiguous]
        # Problems that exist without the overrides belong to the file, others to an override.
        before = validate_document(document.value)[1] if errors and overrides else errors
        problems += [
            _locate(error, document, source_name, overrides, is_new=error not in before)
            for error in errors
        ]
        if job is not None:
            jobs.append(job)
            problems += _duplicate_name(job, document, source_name, seen)
    if problems:
        raise ManifestError(
            sorted(problems, key=lambda error: (error.line or 0, error.column or 0))
        )
    return jobs


def load_mixed(
    text: str, source_name: str, prepared: Callable[[Any], Any]
) -> list[tuple[int, Document, RLHFJob]]:
    """Load the jobs of a text that may also contain other objects.

    Args:
        text: one or several documents.
        source_name: name of the file in messages.
        prepared: transforms a job's document before it is checked.

    Returns:
        For each job the index of its document, the document, and the job.

    Raises:
        ManifestError: the text is not YAML, has no job, or a job has problems.
    """
    documents, problems = read_documents(text, source_name)
    matches = [(n, document) for n, document in enumerate(documents) if _is_job(document.value)]
    if not matches and not problems:
        do = f"name a file with an object of kind {KIND}"
        problems = [Problem((), "no job in it", file=source_name, line=1, column=1, do=do)]
    jobs: list[tuple[int, Document, RLHFJob]] = []
    for number, document in matches:
        job, errors = validate_document(prepared(document.value))
        problems += _ambiguous_words(document, source_name)
        problems += [
            _locate(error, document, source_name, ())
            for error in errors
            if error.location not in document.ambiguous
        ]
        if job is not None:
            jobs.append((number, document, job))
    if problems:
        raise ManifestError(problems)
    return jobs


def _ambiguous_words(document: Document, source_name: str) -> list[Problem]:
    """Problems of unquoted words that kubectl reads in another way than this command."""
    problems = []
    for path, word in document.ambiguous.items():
        values = [json.dumps(value) for value in (kubectl_scalar(word), plain_scalar(word))]
        is_key = path in document.keys and path[-1] == word
        plain = [value for value in dict.fromkeys(values) if not value.startswith('"')]
        choices = [] if is_key else plain
        position = document.key_position(path) if is_key else document.value_position(path)
        problems.append(
            Problem(
                path,
                "a word that kubectl reads in another way",
                got=f"{word}, which is {values[0]} for kubectl and {values[1]} in YAML 1.2",
                do=f"write {' or '.join([*choices, json.dumps(word)])}",
                file=source_name,
                line=position.line,
                column=position.column,
            )
        )
    return problems


def _is_job(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == KIND


def locate_problems(
    error: ManifestError, path: str | Path, job: str, overrides: Sequence[str] = ()
) -> ManifestError:
    """Add positions in a file to problems of a job that was loaded from it.

    Args:
        error: the problems.
        path: the file.
        job: the job's name.
        overrides: those that the job was loaded with.
    """
    documents, _ = read_documents(decode(read_file(Path(path)), str(path)), str(path))
    for document in documents:
        value = apply_overrides(document.value, overrides)
        metadata = value.get("metadata") if isinstance(value, dict) else None
        if isinstance(metadata, dict) and metadata.get("name") == job:
            return ManifestError(
                [_locate(problem, document, str(path), overrides) for problem in error.problems]
            )
    return error


def locate_overrides(
    error: ManifestError, source_name: str, overrides: Sequence[str]
) -> ManifestError:
    """Add to each problem the --set that caused it, or else the source's name.

    For text that cannot be read again, such as standard input.
    """

    def locate(problem: Problem) -> Problem:
        cause = override_at(problem.location, overrides)
        return replace(problem, file=source_name if cause is None else f"--set {cause}")

    return ManifestError([locate(problem) for problem in error.problems])


def decode(content: bytes, source_name: str) -> str:
    """Decode a manifest's bytes.

    Raises:
        ManifestError: they are too many, or not UTF-8.
    """
    # UTF-8 has at most four bytes for a character.
    if len(content) > _MAX_BYTES:
        raise _unreadable(
            source_name,
            "too large for a manifest",
            got=f"more than {_MAX_BYTES} bytes",
            do="check that it is the right file",
        )
    try:
        # Editors on Windows may write a byte order mark.
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
    """Read a manifest, but at most one byte more than is allowed; `decode` refuses longer ones."""
    return stream.read(_MAX_BYTES + 1)


def read_file(path: Path) -> bytes:
    """Read a manifest's file, as `read_limited`.

    Raises:
        ManifestError: the file cannot be read.
    """
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


def _locate(
    problem: Problem,
    document: Document,
    file: str,
    overrides: Sequence[str],
    is_new: bool = False,
) -> Problem:
    """Add to a problem its position in the file, or the override that caused it.

    Args:
        is_new: True if the problem does not exist without the overrides.
    """
    cause = override_at(problem.location, overrides)
    if cause is None and is_new:
        cause = override_inside(problem.location, overrides)
    if cause is not None:
        return replace(problem, file=f"--set {cause}")
    if is_new:
        options = " ".join(f"--set {override}" for override in overrides)
        problem = replace(problem, what=f"{problem.what} (with {options})")
    about_key = problem.what.startswith(("unknown field", "a field that a job", "a key"))
    position = (document.key_position if about_key else document.value_position)(problem.location)
    return replace(problem, file=file, line=position.line, column=position.column)


def _duplicate_name(
    job: RLHFJob,
    document: Document,
    file: str,
    seen: dict[tuple[str | None, str], int],
) -> list[Problem]:
    location = ("metadata", "name")
    position = document.value_position(location)
    first = seen.setdefault((job.metadata.namespace, job.name), position.line)
    if first == position.line:
        return []
    problem = Problem(
        location,
        "two jobs of the same name in a file",
        got=f"{job.name}, first in line {first}",
        do="rename one",
        file=file,
        line=position.line,
        column=position.column,
    )
    return [problem]
