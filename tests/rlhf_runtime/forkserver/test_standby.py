"""A standing server is found by whoever would have imported and been allowed the same."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_api.spec.resources import Device
from rlhf_runtime.forkserver import launcher, standby

TELL = (
    "from rlhf_api.spec.resources import Device;"
    "from rlhf_runtime.forkserver.standby import name_for;"
    "print(name_for(Device.CPU))"
)


def name_elsewhere(*inside: str, **environment: str) -> str:
    """The name in a process of its own."""
    return subprocess.run(
        [*inside, sys.executable, "-c", TELL],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_another_process_with_the_same_code_and_rights_finds_it() -> None:
    assert name_elsewhere(SOME_VARIABLE="1") == standby.name_for(Device.CPU)
    assert standby.name_for(Device.CPU) != standby.name_for(Device.GPU)


@pytest.mark.parametrize(
    ("inside", "environment"),
    [
        ((), {"HF_HOME": "/elsewhere"}),
        ((), {"CUDA_VISIBLE_DEVICES": "1"}),
        ((), {standby.VARIABLE: "mine"}),
        (("sh", "-c", 'umask 077; exec "$@"', "sh"), {}),
        (("sh", "-c", 'ulimit -n 500; exec "$@"', "sh"), {}),
        (("nice",), {}),
        (("taskset", "-c", "0"), {}),
    ],
    ids=["cache", "devices", "variable", "umask", "limit", "priority", "cores"],
)
def test_one_that_was_started_in_another_way_does_not(
    inside: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert name_elsewhere(*inside, **environment) != standby.name_for(Device.CPU)


@pytest.mark.parametrize(
    ("inside", "environment", "words"),
    [
        ((), {"LANG": "xx"}, "other variables that libraries read when they start"),
        (("nice",), {}, "other rights, limits, cores or priority"),
        (
            ("nice",),
            {"LANG": "xx"},
            "other variables that libraries read when they start and other rights, limits, cores "
            "or priority",
        ),
    ],
    ids=["variables", "priority", "both"],
)
def test_who_cannot_share_one_that_is_there_says_why(
    inside: tuple[str, ...],
    environment: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other tests have servers of their own on this machine at the same time.
    prefix = "standing-tested"
    elsewhere = name_elsewhere(*inside, **environment).replace(standby.PREFIX, prefix)
    monkeypatch.setattr(standby, "PREFIX", prefix)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(launcher.address_of(elsewhere))
        listener.listen()
        assert standby.describe_other_servers(standby.name_for(Device.CPU)) == [words]
    assert standby.describe_other_servers(standby.name_for(Device.CPU)) == []


def test_changed_code_is_not_taken_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "changing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(standby, "PACKAGES", (*standby.PACKAGES, "changing"))
    before = standby.name_for(Device.CPU)
    assert standby.name_for(Device.CPU) == before
    (package / "new.py").write_text("")
    assert standby.name_for(Device.CPU) != before


def test_all_packages_that_a_server_imports_are_part_of_the_name() -> None:
    imported: set[str] = set()
    for file in Path(standby.__file__).parents[1].rglob("*.py"):
        if "profiling" not in file.parts:
            found = re.findall(r"^\s*(?:from|import) (rlhf_\w+)", file.read_text(), re.MULTILINE)
            imported |= set(found)
    assert "rlhf_sizing" in imported and imported <= set(standby.PACKAGES)


def test_it_stands_while_somebody_listens() -> None:
    name = "rlhf-standby-of-a-test"
    assert not standby.is_listening(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(launcher.address_of(name))
        listener.listen()
        assert standby.is_listening(name)
    assert not standby.is_listening(name)
