"""A run's lock holds while it is one of the same requirements in the same environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.spec.cluster import CodeSpec
from rlhf_cli.packages.lock import (
    LOCK_FILE,
    LockedPackage,
    PackageLock,
    keep_lock,
    read_lock,
    this_python,
    write_lock,
)
from rlhf_runtime.python_path import Packages
from rlhf_runtime.telemetry.errors import CannotRecord

REQUIREMENTS = ("some-words>=1", "other")
LOCK = PackageLock(
    requirements=REQUIREMENTS,
    python=this_python(),
    packages=(LockedPackage(name="some-words", version="1.5", hashes=("sha256:0",)),),
)


@pytest.mark.parametrize(
    ("requirements", "installed", "holds"),
    [
        (REQUIREMENTS, {"other": "3"}, True),
        (("some-words>=1",), {"other": "3"}, False),
        (REQUIREMENTS, {}, False),
        (REQUIREMENTS, {"other": "3", "some-words": "1.1"}, True),
        (REQUIREMENTS, {"other": "3", "some-words": "0.9"}, False),
    ],
    ids=["the same", "other requirements", "less in the image", "more", "too old in the image"],
)
def test_a_lock_holds(
    requirements: tuple[str, ...], installed: dict[str, str], holds: bool
) -> None:
    assert LOCK.is_of(requirements, installed) is holds


def test_a_lock_of_another_python_does_not_hold() -> None:
    other = LOCK.model_copy(update={"python": "cpython-27-vax"})
    assert not other.is_of(REQUIREMENTS, {"other": "3"}) and other.digest != LOCK.digest


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        '{"requirements": 1}',
        LOCK.model_dump_json().replace('some-words"', '-r x"'),
        LOCK.model_dump_json().replace("1.5", "1.5 --pre"),
        LOCK.model_dump_json().replace("sha256:0", "sha256:0 --pre"),
        LOCK.model_dump_json().replace('"sha256:0"', ""),
    ],
)
def test_a_damaged_lock_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / LOCK_FILE).write_text(text)
    assert read_lock(tmp_path) is None


def test_a_set_without_a_lock_does_not_take_the_runs(tmp_path: Path) -> None:
    run, packages = tmp_path / "run", Packages(str(tmp_path / "set"), LOCK.digest)
    run.mkdir()
    write_lock(run, LOCK)
    with pytest.raises(CannotRecord, match=r"no readable requirements\.json in .*/set; delete"):
        keep_lock(run, CodeSpec(requirements=REQUIREMENTS), packages)
    assert read_lock(run) == LOCK
