"""Patches of Ray's start."""

from __future__ import annotations

import subprocess

import pytest
from ray._private import services

from rlhf_runtime.controller.ray_patches import patched_node_wait


def test_a_slow_raylet_is_awaited_and_a_dead_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([RuntimeError("not yet"), RuntimeError("not yet"), {"node": 1}])

    def get_node(address: str, node: str) -> object:
        answer = next(answers, RuntimeError("never"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(services, "get_node", get_node)
    with subprocess.Popen(["sleep", "3600"]) as raylet, patched_node_wait([raylet], 60):
        assert services.get_node("address", "node") == {"node": 1}
        raylet.kill()
        with pytest.raises(ChildProcessError, match="sleep 3600 ended with -9"):
            services.get_node("address", "node")
    assert services.get_node is get_node


def test_the_wait_for_a_raylet_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_node(address: str, node: str) -> object:
        raise RuntimeError("never")

    monkeypatch.setattr(services, "get_node", get_node)
    with patched_node_wait([], 0.1), pytest.raises(RuntimeError, match="never"):
        services.get_node("address", "node")
