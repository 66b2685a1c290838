"""pip's failures as errors; the texts are pip's own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf_api.errors import ManifestError, RlhfError
from rlhf_cli.packages import pip
from rlhf_cli.packages.pip import failure, find_pip, without_secrets
from rlhf_runtime.errors import NoSpace, PackageIndexUnreachable, RequirementsFailed

MISSING = "ERROR: No matching distribution found for a"
CONFLICT = "ERROR: Cannot install a\n  The user requested (constraint) torch==2.13.0\n"
HASHES = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
FETCH = "Could not fetch URL https://i.example/simple/a/:"


@pytest.mark.parametrize(
    ("output", "log", "kind"),
    [
        (MISSING, f"{FETCH} 404 Client Error: Not Found - skipping", RequirementsFailed),
        (MISSING, f"{FETCH} 401 Client Error: Unauthorized - skipping", RequirementsFailed),
        (MISSING, f"{FETCH} connection error: HTTPPool - skipping", PackageIndexUnreachable),
        (MISSING, f"{FETCH} timed out - skipping", PackageIndexUnreachable),
        (MISSING, f"{FETCH} 503 Server Error: Busy - skipping", PackageIndexUnreachable),
        ("ERROR: HTTP error 502 while getting https://i.example/a", "", PackageIndexUnreachable),
        ("WARNING: Retrying after connection broken by 'X'", "", PackageIndexUnreachable),
        (CONFLICT, f"{FETCH} timed out - skipping", ManifestError),
        (HASHES, f"{FETCH} timed out - skipping", RequirementsFailed),
        (FULL, "", NoSpace),
        ("ERROR: [Errno 122] Disk quota exceeded", "", NoSpace),
        ("ERROR: Failed to build a", "", RequirementsFailed),
    ],
)
def test_a_failure_has_its_kind(output: str, log: str, kind: type[RlhfError]) -> None:
    error = failure(output, log, {})
    assert type(error) is kind and output.splitlines()[0] in str(error)


def test_the_last_lines_are_shown() -> None:
    text = str(failure("\n".join(f"line {number}." for number in range(50)), "", {}))
    assert "line 30." in text and "line 49." in text and "line 29." not in text


CRASH = """Processing a.whl
ERROR: Exception:
Traceback (most recent call last):
  File "/pip/cli.py", line 180, in run
    func()
    ^^^^^^
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/pip/cli.py", line 1, in run
shutil.Error: not moved
"""
BUILD = "  x setup.py\n      Traceback (most recent call last):\n        File 'setup.py', line 1"


def test_a_fault_of_pip_is_shown_without_its_traceback_and_a_builds_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/my/tmp")
    text = str(failure(CRASH, "", {}))
    assert "free space where they are stored and" in text and "now /my/tmp)" in text
    *_, first, second, third = text.splitlines()
    assert first == "  Processing a.whl" and third == "  shutil.Error: not moved"
    assert second == "  OSError: [Errno 28] No space left on device"
    assert "line 1" in str(failure(BUILD, "", {}))


def test_the_words_of_a_failed_build_are_shown() -> None:
    time = "2026-11-29T11:25:08,288"
    log = f"{time} Running command one\n{time}   fine\n{time}   Running command two\n"
    log += f"{time}   no compiler\n{time}   ERROR: [present-rich] two exited with 1\n{time} end\n"
    text = str(failure("  error: subprocess-exited-with-error\n  See above for output.", log, {}))
    assert text.endswith("pip says:\n  two\n    no compiler")


def test_settings_of_another_target_do_not_reach_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "PIP_PLATFORM",
        "PIP_NO_DEPS",
        "PIP_PYTHON_VERSION",
        "PIP_Target",
        "PIP_REQUIRE_HASHES",
        "PIP_PRE",
    ]
    for name in names:
        monkeypatch.setenv(name, "1")
    program = f"import os; print({{n: os.environ.get(n) for n in {names}}}); exit(1)"
    monkeypatch.setattr(pip, "find_pip", lambda: [sys.executable, "-c", program])
    with pytest.raises(RequirementsFailed) as failed:
        pip.run_pip([], tmp_path)
    reached = dict.fromkeys(names) | {"PIP_PRE": "1", "PIP_NO_DEPS": "0", "PIP_REQUIRE_HASHES": "0"}
    assert str(failed.value).endswith(f"pip says:\n  {reached}")


def test_an_address_without_a_secret_changes_no_text() -> None:
    assert without_secrets("no such a", {"PIP_INDEX_URL": "https://:@i.example/s"}) == "no such a"


def test_passwords_of_addresses_are_in_no_text() -> None:
    variables = {
        "PIP_EXTRA_INDEX_URL": "https://a.example/s https://team:p%2Fw0rd@i.example/s",
        "PIP_INDEX_URL": "https://t0ken@o.example/s",
        "OTHER": "https://me:i@o.example",
        "PIP_FIND_LINKS": "https://:@o.example/s",
    }
    said = "https://team:p%2Fw0rd@i.example and p/w0rd of i, t0ken https://x:y@z@o.example/s@1"
    shown = without_secrets(said, variables)
    assert shown == "https://****@i.example and **** of i, **** https://****@o.example/s@1"


def test_pip_is_the_environments_own_or_that_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "PathFinder", SimpleNamespace(find_spec=lambda name: name))
    assert find_pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(pip, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    base = vars(sys)["_base_executable"]
    assert find_pip() == [base, "-m", "pip", "--python", sys.executable]
    monkeypatch.setattr(sys, "_base_executable", "/bin/false")
    with pytest.raises(RequirementsFailed, match="installed by pip: got none in .*/bin/false"):
        find_pip()
