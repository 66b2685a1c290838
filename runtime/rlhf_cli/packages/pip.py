"""Runs pip in the environment of this process, and turns its failures into errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import unquote

from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.problems import Problem
from rlhf_runtime.errors import NoSpace, PackageIndexUnreachable, RequirementsFailed
from rlhf_runtime.hooks import Hook, noop

REQUIREMENTS = ("spec", "code", "requirements")
POLL_SECONDS = 0.2
SHOWN_LINES = 20
OUTPUT, LOG = "output.txt", "log.txt"
# Settings of pip that would install something else, or elsewhere, or for another Python.
_SETTINGS_OF_A_TARGET = (
    "PIP_ABI", "PIP_DRY_RUN", "PIP_EDITABLE", "PIP_FORCE_REINSTALL", "PIP_GROUP",
    "PIP_IGNORE_INSTALLED", "PIP_IMPLEMENTATION", "PIP_LOG", "PIP_NO_DEPENDENCIES",
    "PIP_NO_DEPS", "PIP_PLATFORM",
    "PIP_PREFIX", "PIP_PYTHON", "PIP_PYTHON_VERSION", "PIP_QUIET", "PIP_REPORT",
    "PIP_REQUIREMENT", "PIP_REQUIRE_HASHES", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET",
    "PIP_UPGRADE", "PIP_USER", "PIP_VERBOSE",
)  # fmt: skip
# Switches of the same kind, which a file of pip's settings may turn on.
_SWITCHES_OFF = (
    "PIP_DRY_RUN", "PIP_FORCE_REINSTALL", "PIP_NO_DEPS", "PIP_REQUIRE_HASHES",
    "PIP_REQUIRE_VIRTUALENV", "PIP_USER",
)  # fmt: skip
_CREDENTIALS = re.compile(r"://[^/?#\s]+@")
# Lines of the traceback that pip prints after a fault of its own, without those of the exception.
_TRACEBACK = re.compile(
    r"ERROR: Exception:|Traceback \(most recent call last\):|\s"
    r"|During handling of the above exception|The above exception was the direct cause"
)
# Stands in pip's log behind the output of a build.
_FAILED_BUILD = "ERROR: [present-rich] "
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\S+ ")
# Texts of pip's log about an index that does not answer. An answer such as 404 is none of them.
_UNREACHABLE = re.compile(
    r"Could not fetch URL \S+ (connection error|timed out|There was a problem confirming)"
    r"|(5\d\d Server Error|429 Client Error)"
    r"|HTTP error (5\d\d|429) while getting"
    r"|after connection broken by|ReadTimeoutError|ConnectTimeoutError|IncompleteRead"
    r"|NewConnectionError|Max retries exceeded"
)
# A quota, too, is a full disk.
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_CONFLICT = re.compile(r"\(constraint\) (\S+)")


def find_pip() -> list[str]:
    """Return the begin of pip's command line: the environment's own, or that of its base.

    Raises:
        RequirementsFailed: there is none.
    """
    # Not `importlib.util`: setuptools hooks into that for pip, and warns.
    if PathFinder.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # Environments of uv, such as the image's, have no pip of their own.
    base = getattr(sys, "_base_executable", sys.executable)
    if subprocess.run([base, "-P", "-c", "import pip"], capture_output=True).returncode:
        raise RequirementsFailed(
            f"code.requirements are installed by pip: got none in {sys.prefix} and none for "
            f"{base}; install pip there, or use an image that has the packages"
        ).at(*REQUIREMENTS)
    return [base, "-m", "pip", "--python", sys.executable]


def run_pip(arguments: Sequence[str], folder: Path, keep_alive: Hook = noop) -> None:
    """Run pip to its end.

    Args:
        arguments: its command and options.
        folder: an empty folder for its logs; becomes the current folder.
        keep_alive: called while it runs; an exception ends it.

    Raises:
        ManifestError: the requirements do not fit what is installed.
        PackageIndexUnreachable: the index does not answer.
        NoSpace: the disk is full.
        RequirementsFailed: pip failed otherwise.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        # pip reads the rest of a name in any case.
        if not (name.startswith("PIP_") and name.upper() in _SETTINGS_OF_A_TARGET)
    }
    variables.update(dict.fromkeys(_SWITCHES_OFF, "0"))
    options = ["--no-input", "--no-color", "--disable-pip-version-check"]
    options += ["--log", str(folder / LOG)]
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [*find_pip(), *options, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            code = _wait(process, keep_alive)
        except BaseException:
            # pip starts processes of its own, which must end with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code:
        raise failure(_read(folder / OUTPUT), _read(folder / LOG), os.environ)


def _wait(process: subprocess.Popen[bytes], keep_alive: Hook) -> int:
    while True:
        keep_alive()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def failure(output: str, log: str, variables: Mapping[str, str]) -> RlhfError:
    """Return the error of a failed pip.

    Args:
        output: what it printed.
        log: its verbose log.
        variables: the environment, whose secrets are left out of texts.
    """
    said = _words_of_build(log) or output
    lines = list(_shown_lines(without_secrets(said, variables)))
    words = "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])
    if "DO NOT MATCH THE HASHES" in output:
        return RequirementsFailed(
            "a package of the index is not the one that the run began with: its hash differs; "
            "restore the file in the index, or delete requirements.json in the run's folder to "
            f"resolve code.requirements anew. pip says:\n{words}"
        ).at(*REQUIREMENTS)
    if conflicts := sorted({*_CONFLICT.findall(output)}):
        problem = Problem(
            REQUIREMENTS,
            "they need other versions of packages than this environment has",
            got=", ".join(conflicts),
            do="choose other versions of the requirements, or an image with other packages. pip "
            f"says:\n{words}",
        )
        return ManifestError([problem])
    if full := _FULL.search(output):
        return NoSpace(
            f"the packages of code.requirements need more space: got {full[0]}; free space "
            "where they are stored and in the folder of temporary files (TMPDIR, now "
            f"{tempfile.gettempdir()}). pip says:\n{words}"
        ).at(*REQUIREMENTS)
    if _UNREACHABLE.search(log) or _UNREACHABLE.search(output):
        return PackageIndexUnreachable(
            "the package index does not answer; see to PIP_INDEX_URL and the network. pip says:\n"
            + words
        ).at(*REQUIREMENTS)
    return RequirementsFailed(
        "code.requirements cannot be installed; correct them, or the index, or use an image that "
        f"has the packages. pip says:\n{words}"
    ).at(*REQUIREMENTS)


def _words_of_build(log: str) -> str:
    """Return what the failed build of a package printed. Empty: none failed."""
    # A pip that logs does not print them: it says "See above", where nothing is.
    before, failed, _ = log.partition(_FAILED_BUILD)
    lines = before.rpartition("Running command ")[2].splitlines()[:-1] if failed else []
    return "\n".join(_TIME.sub("", line) for line in lines)


def _shown_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text of pip that tell a user something."""
    is_traceback = False
    for line in text.splitlines():
        # Tracebacks of a package's build, which help its user, are indented.
        is_traceback |= line.startswith("ERROR: Exception:")
        if line.strip() and not (is_traceback and _TRACEBACK.match(line)):
            yield line


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """Return a text without the credentials of addresses.

    Args:
        variables: the environment, whose settings of pip may have them.
    """
    for name, value in variables.items():
        if not name.startswith("PIP_"):
            continue
        for match in _CREDENTIALS.findall(value):
            user, _, password = match[3:-1].partition(":")
            # A token may stand alone.
            secret = password or user
            for form in filter(None, (secret, unquote(secret))):
                text = text.replace(form, "****")
    return _CREDENTIALS.sub("://****@", text)
