"""Changes of `ray start` for a pod. Ray itself starts in tests/rlhf_operator/real_stage.py."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import services
from ray.scripts import scripts

from rlhf_api.on_cluster import RAY_START_VARIABLE
from rlhf_runtime.controller import ray_start

RAYLET = ["/ray/raylet", "--agent_command=python agent.py --listen-port=6380 --grpc-port=6381"]
GCS = ["/ray/gcs_server", "--gcs_server_port=6379"]


class FakeStart:
    """`ray start` that starts nothing: it records its arguments and the commands of processes."""

    def __init__(self, commands: Sequence[list[str]]) -> None:
        self.commands = commands
        self.arguments: list[str] = []
        self.started: list[Sequence[str]] = []
        self.has_client_server = True
        self.node: object = None
        self.answers = iter([RuntimeError("it has not registered"), {"node": 1}])

    def main(self, arguments: list[str], prog_name: str) -> None:
        self.arguments = arguments
        self.has_client_server = scripts.get_ray_client_dependency_error() is None
        for command in self.commands:
            services.ConsolePopen(command)
        self.node = services.get_node("address", "node")

    def popen(self, command: Sequence[str], **_options: Any) -> SimpleNamespace:
        self.started.append(command)
        return SimpleNamespace(poll=lambda: None)  # it lives

    def get_node(self, address: str, node: str) -> object:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def start(monkeypatch: pytest.MonkeyPatch, command: str, *processes: list[str]) -> FakeStart:
    """Run the command that KubeRay gives a pod."""
    fake = FakeStart(processes)
    monkeypatch.setattr(scripts, "start", fake)
    monkeypatch.setattr(services, "ConsolePopen", fake.popen)
    monkeypatch.setattr(services, "get_node", fake.get_node)
    monkeypatch.setenv(RAY_START_VARIABLE, command)
    ray_start.main()
    return fake


def test_kuberays_arguments_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    words = """ray start  --head --resources='{"a100": 1}' --num-cpus=0 --block """
    fake = start(monkeypatch, words)
    assert fake.arguments == ["--head", '--resources={"a100": 1}', "--num-cpus=0", "--block"]
    assert not fake.has_client_server
    assert fake.node == {"node": 1}, "a slow raylet is awaited"


def test_a_raylet_is_told_the_port_of_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = start(monkeypatch, "ray start --block", GCS, RAYLET)
    assert fake.started == [GCS, [*RAYLET, "--dashboard_agent_listen_port=6380"]]


def test_a_release_of_ray_with_other_commands_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="starts its agents otherwise"):
        start(monkeypatch, "ray start --block", ["/ray/raylet"])


def test_a_command_other_than_ray_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="sleep infinity"):
        start(monkeypatch, "sleep infinity")
