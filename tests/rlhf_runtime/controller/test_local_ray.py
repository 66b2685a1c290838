import shutil
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from rlhf_runtime.controller import local_ray
from rlhf_runtime.end_with_parent import idle_command
from rlhf_runtime.errors import NotEnoughResources, RayFailed

from ...waiting import wait_until

MEBIBYTE = 2**20
Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.fixture
def docker_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory as in a container that was started without --shm-size: 64 MiB."""
    usage = Usage(64 * MEBIBYTE, MEBIBYTE, 63 * MEBIBYTE)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)


@pytest.mark.usefixtures("docker_default")
def test_too_little_shared_memory_is_refused_with_both_numbers_and_a_remedy(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotEnoughResources) as refused:
        local_ray.check_shared_memory(256 * MEBIBYTE, tmp_path)
    message = str(refused.value)
    assert f"got 63 MiB free in {tmp_path}, needed 256 MiB" in message
    assert "--shm-size=1g" in message


@pytest.mark.usefixtures("docker_default")
def test_as_much_as_needed_is_enough(tmp_path: Path) -> None:
    local_ray.check_shared_memory(63 * MEBIBYTE, tmp_path)


def test_a_machine_without_shared_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughResources, match="got 0 MiB free"):
        local_ray.check_shared_memory(1, tmp_path / "missing")


@pytest.mark.usefixtures("docker_default")
def test_ray_is_not_started_on_such_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("ray.init", never)
    with pytest.raises(NotEnoughResources):
        local_ray.start_local_ray(1)


def test_a_ray_that_dies_in_its_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_options: object) -> None:
        raise ChildProcessError("raylet ended with 1")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with pytest.raises(RayFailed, match=r"got ChildProcessError: raylet ended with 1; give the"):
        local_ray.start_local_ray(1)


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_what_lies_in_the_object_store_is_counted_until_nobody_wants_it() -> None:
    before, size = local_ray.object_store_bytes(), 16 * MEBIBYTE
    held = ray.put(np.zeros(size, dtype=np.uint8))
    wait_until(lambda: local_ray.object_store_bytes() >= before + size, 60, "it counts")
    del held
    wait_until(lambda: local_ray.object_store_bytes() < before + size, 60, "it is gone")


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_ray_starts_only_what_runs_workers() -> None:
    started = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            started.append(" ".join(child.cmdline()))
    for needed in ("gcs_server", "raylet"):
        assert any(needed in command for command in started), started
    for not_asked in ("monitor.py", "log_monitor.py", "dashboard.py", "agent.py", "agent/main.py"):
        assert not any(not_asked in command for command in started), started
    idle = " ".join(idle_command())
    assert sum(command.startswith(idle) for command in started) == 2, started
