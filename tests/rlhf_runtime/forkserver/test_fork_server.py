"""A real fork server with all libraries, and scripts in place of Ray's workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from rlhf_api.on_cluster import FORK_SERVER_VARIABLE
from rlhf_api.spec.resources import Device
from rlhf_runtime.end_with_parent import RAYLET
from rlhf_runtime.forkserver import client, launcher
from rlhf_runtime.forkserver.client import OwnForkServer
from rlhf_runtime.hooks import noop

from ...heavy_starts import Heavy, count_start
from ...waiting import wait_until

pytestmark = pytest.mark.ray

SECONDS = 120.0
TELL = """
import json, os, random, sys
import numpy
names = ("torch", "vllm", "transformers", "ray", "openai", "cv2")
loaded = [name for name in names if name in sys.modules]
import torch
facts = {
    "process": os.getpid(), "group": os.getpgrp(), "parent": os.getppid(),
    "words": sys.argv, "folder": os.getcwd(),
    "mark": os.environ["MARK"], "statistics": os.environ.get("VLLM_NO_USAGE_STATS"),
    "servers_own": os.environ.get("OF_THE_SERVER"),
    "loaded": loaded, "cuda": torch.cuda.is_initialized(),
    "numbers": [float(numpy.random.rand()), random.random()],
}
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(facts, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("out of", sys.argv[1], flush=True)
exec(sys.argv[2] if len(sys.argv) > 2 else "")
"""
STAY = "import time; time.sleep(3600)"


class Raylet:
    """A process that stands for a raylet: it starts launchers and lives until it is killed."""

    def __init__(self, server: str, folder: Path) -> None:
        self._folder = folder
        self._script = folder / "worker.py"
        self._script.write_text(TELL)
        self.process = subprocess.Popen([sys.executable, "-c", STAY])
        self.environment = os.environ | {
            launcher.SERVER: server,
            RAYLET: str(self.process.pid),
            "MARK": folder.name,
        }

    def start(self, name: str, code: str = "") -> dict[str, object]:
        """Have a worker started; what it tells of itself."""
        told = self._folder / name
        log = self._folder / f"{name}.log"
        argv = [str(self._script), "--language=PYTHON", str(told), code]
        with log.open("w") as stream:
            subprocess.run(
                [*launcher.command(), *argv],
                env=self.environment,
                cwd=self._folder,
                stdout=stream,
                check=True,
            )
        wait_until(told.exists, SECONDS, name)
        facts: dict[str, object] = json.loads(told.read_text())
        return facts

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[OwnForkServer]:
    os.environ["OF_THE_SERVER"] = "1"
    count_start(Heavy.FORK_SERVER)
    with closing(OwnForkServer(Device.CPU)) as made:
        del os.environ["OF_THE_SERVER"]
        yield made


@pytest.fixture
def raylet(server: OwnForkServer, tmp_path: Path) -> Iterator[Raylet]:
    made = Raylet(server.name, tmp_path)
    yield made
    made.end()


def is_gone(process: object) -> bool:
    assert isinstance(process, int)
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # also one that ends while it is looked at
        return True


def test_what_is_forked_has_its_libraries_and_is_otherwise_as_if_it_had_been_started(
    server: OwnForkServer, raylet: Raylet, tmp_path: Path
) -> None:
    first = raylet.start("first")
    assert first["words"] == [str(tmp_path / "worker.py"), str(tmp_path / "first"), ""]
    assert (first["folder"], first["mark"]) == (str(tmp_path), tmp_path.name)
    assert first["group"] == first["process"], "Ray ends the group of a worker that has died"
    assert (first["statistics"], first["servers_own"]) == ("1", None), "the raylet's environment"
    assert first["loaded"] == ["torch", "vllm", "transformers"] and first["cuda"] is False
    wait_until(lambda: raylet.log("first") != "", SECONDS, "what it wrote")
    assert raylet.log("first") == f"out of {tmp_path / 'first'}\n"
    wait_until(lambda: is_gone(first["process"]), SECONDS, "its end")
    forking = psutil.Process(int(str(first["parent"])))
    assert forking.num_threads() == 1, "whoever forks must have one thread"
    assert not forking.children(), "what has ended is forgotten"

    second = raylet.start("second")
    assert second["parent"] == first["parent"] and second["numbers"] != first["numbers"]


def test_what_was_left_out_can_be_imported_by_whoever_wants_it(raylet: Raylet) -> None:
    code = "import openai.types, cv2; print(openai.types.Model.__module__, cv2.__version__)"
    raylet.start("wants-more", code)
    wait_until(lambda: raylet.log("wants-more").count("\n") == 2, SECONDS, "what it wrote")
    assert "openai.types.model" in raylet.log("wants-more")


def test_with_a_raylet_its_workers_end_even_what_is_frozen_but_not_those_of_another(
    server: OwnForkServer, raylet: Raylet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Raylet(server.name, tmp_path_factory.mktemp("other"))
    running, frozen = (raylet.start(name, STAY) for name in ("running", "frozen"))
    staying = other.start("staying", STAY)
    os.kill(int(str(frozen["process"])), signal.SIGSTOP)
    raylet.process.kill()
    for process in (running["process"], frozen["process"]):
        wait_until(lambda process=process: is_gone(process), SECONDS, f"the end of {process}")
    assert not is_gone(staying["process"]) and not is_gone(staying["parent"])
    assert other.start("later")["parent"] == staying["parent"]
    other.end()
    wait_until(lambda: is_gone(staying["process"]), SECONDS, "the end with the other raylet")


def test_the_server_of_a_raylet_ends_with_it_and_what_it_has_forked(raylet: Raylet) -> None:
    count_start(Heavy.FORK_SERVER)
    name = launcher.name_for(f"/of/{raylet.process.pid}")
    for _ in range(2):  # the second time there is one
        client.start_server(name, Device.CPU, raylet.process.pid)
    assert client.wait_until_ready(name, noop)
    raylet.environment[launcher.SERVER] = name
    running = raylet.start("running", STAY)
    assert client.unload(name, noop), "also one that has begun anew"
    raylet.process.kill()
    for process in (running["process"], running["parent"]):
        wait_until(lambda process=process: is_gone(process), SECONDS, f"the end of {process}")


def test_that_of_a_pod_is_started_by_the_pods_hook_under_the_pods_name(raylet: Raylet) -> None:
    count_start(Heavy.FORK_SERVER)
    name = f"rlhf-{uuid.uuid4().hex}"
    hook = [sys.executable, "-P", "-m", "rlhf_runtime.forkserver.pod_server", "CPU"]
    for _ in range(2):  # the second time there is one
        subprocess.run(hook, env=os.environ | {FORK_SERVER_VARIABLE: name}, check=True)
    assert client.wait_until_ready(name, noop)
    raylet.environment[launcher.SERVER] = name
    worker = raylet.start("of-the-pod", STAY)
    assert worker["loaded"] == ["torch", "vllm", "transformers"]
    os.kill(int(str(worker["parent"])), signal.SIGKILL)  # as the end of the container does
    wait_until(lambda: is_gone(worker["process"]), SECONDS, "the end with the server")


def test_a_server_forgets_its_libraries_and_imports_them_again_for_the_next_worker(
    server: OwnForkServer, raylet: Raylet
) -> None:
    staying = raylet.start("staying", STAY)
    forking = psutil.Process(int(str(staying["parent"])))
    before = forking.memory_info().rss
    assert client.unload(server.name, noop)
    wait_until(lambda: forking.memory_info().rss < before / 5, SECONDS, "memory given back")
    assert not is_gone(staying["process"]), "it lives on"
    later = raylet.start("later")
    assert later["parent"] == staying["parent"] and later["loaded"] == staying["loaded"]
    raylet.process.kill()
    wait_until(lambda: is_gone(staying["process"]), SECONDS, "the end with the raylet")


def test_one_that_has_died_is_started_again_under_its_name(
    server: OwnForkServer, raylet: Raylet
) -> None:
    first = raylet.start("first", STAY)
    os.kill(int(str(first["parent"])), signal.SIGKILL)
    wait_until(lambda: is_gone(first["process"]), SECONDS, "the end with the server")
    wait_until(lambda: not client.wait_until_ready(server.name, noop), SECONDS, "no answer")
    server.revive()
    assert client.wait_until_ready(server.name, noop)
    assert raylet.start("second")["parent"] != first["parent"]


def test_the_launcher_reads_the_variable_that_pods_have() -> None:
    assert launcher.SERVER == FORK_SERVER_VARIABLE


def test_without_a_server_the_worker_starts_by_itself(tmp_path: Path) -> None:
    raylet = Raylet("nobody", tmp_path)
    raylet.end()
    alone = raylet.start("alone")
    assert alone["loaded"] == [] and alone["parent"] == os.getpid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_gets_nothing_forked(server: OwnForkServer) -> None:
    ask = (
        "import os, sys; os.setuid(65534); sys.path.insert(0, sys.argv[1])\n"
        "import socket\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + sys.argv[2])\n"
        "socket.send_fds(s, [b'x'], [0, 1, 2]); s.sendall(b'{\"ready\": true}')\n"
        "s.shutdown(socket.SHUT_WR); print(len(s.recv(100)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ask, "", server.name], capture_output=True, text=True
    )
    assert done.stdout.strip() in ("0", "") and "{" not in done.stdout
    assert client.wait_until_ready(server.name, noop), "its owner is served all the same"


def test_a_server_of_another_user_is_not_trusted_with_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(launcher.address_of("rlhf-strange"))
        stranger.listen()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError, match="belongs to another user"):
            launcher.connect("rlhf-strange")


def test_one_that_is_retired_takes_nobody_and_ends_with_its_last_worker(
    server: OwnForkServer, raylet: Raylet
) -> None:
    # Last in this file: it ends the server that the tests share.
    staying = raylet.start("staying", STAY)
    assert client.retire(server.name)
    assert raylet.start("by-itself")["loaded"] == []
    assert server.is_alive and not is_gone(staying["process"])
    os.kill(int(str(staying["process"])), signal.SIGKILL)
    wait_until(lambda: not server.is_alive, SECONDS, "its end")
