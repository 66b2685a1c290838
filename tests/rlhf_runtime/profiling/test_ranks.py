"""Processes that measure: which end is a failure, which GPU is whose, and two of them."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.problem.profile import Constants, Measured, Profile
from rlhf_runtime.errors import NotEnoughResources, ProfilingFailed
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.profiling import ranks
from rlhf_runtime.profiling.setup import Setup
from rlhf_runtime.profiling.subjects import Subject
from rlhf_sizing.config import read_shape

from ...heavy_starts import Heavy, count_start

PROFILE = Profile(
    measured=Measured(device=Device.CPU, name="a core", ranks=2, threads=1, torch="2"),
    constants=Constants(memory_bytes_per_second=1e9),
    models=(),
)


@dataclass
class Process:
    """One that has ended, or not."""

    exitcode: int | None


class Answers:
    """A queue in which nothing is at `None`, and after the last nothing ever."""

    def __init__(self, *items: tuple[str, str] | None) -> None:
        self._items = list(items)
        self.looks = 0

    def get(self, timeout: float) -> tuple[str, str]:
        self.looks += 1
        assert self.looks < 100, "asked for ever"
        item = self._items.pop(0) if self._items else None
        if item is None:
            raise queue.Empty
        return item


def answer(folder: Path, exit_codes: Sequence[int | None], *items: Any) -> Profile:
    setup = Setup((), Device.CPU, len(exit_codes), 1, folder)
    processes = [Process(code) for code in exit_codes]
    return ranks._answer(setup, processes, Answers(*items), lambda _: None)


def test_a_rank_may_end_before_the_first_has_answered(tmp_path: Path) -> None:
    found = answer(tmp_path, [None, 0], *[None] * 5, ("profile", PROFILE.to_json()))
    assert found == PROFILE


def test_the_first_may_have_ended_when_its_answer_comes(tmp_path: Path) -> None:
    found = answer(tmp_path, [0, 0], None, ("profile", PROFILE.to_json()))
    assert found == PROFILE


@pytest.mark.parametrize(
    ("exit_codes", "told"),
    [([None, -9], "rank 1 ended with -9"), ([0, None], "rank 0 ended with 0")],
)
def test_a_rank_that_failed_ends_all(
    tmp_path: Path, exit_codes: list[int | None], told: str
) -> None:
    with pytest.raises(ProfilingFailed, match=told):
        answer(tmp_path, exit_codes)


def test_what_a_failed_rank_has_said_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfilingFailed, match="got ValueError: 7"):
        answer(tmp_path, [None, 1], None, ("failed", "ValueError: 7"))


def test_each_rank_has_its_own_of_the_visible_gpus() -> None:
    assert ranks.visible_gpus(2, {}) == ["0", "1"]
    assert ranks.visible_gpus(2, {ranks.VISIBLE: "3, GPU-5f,1"}) == ["3", "GPU-5f"]


@pytest.mark.parametrize("visible", ["3", "", "-1", "3,-1,4"])
def test_fewer_visible_gpus_than_ranks_are_refused(
    visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any process starts."""
    monkeypatch.setenv(ranks.VISIBLE, visible)
    with pytest.raises(NotEnoughResources, match=r"got [01] in .*, needed 2; .*--devices"):
        ranks.measure([], Device.GPU, 2, lambda _: None)


@pytest.mark.ray
def test_two_ranks_measure_a_model(tmp_path: Path) -> None:
    """At the same time, with what is between them."""
    folder = tiny_llama_folder(0, tmp_path)
    subject = Subject(
        name="critic",
        folder=folder,
        shape=read_shape(folder, ""),
        precision=Precision.FLOAT32,
        tensor=1,
        computes=True,
        generates=False,
        micro_batch_tokens=64,
        max_sequences=8,
        max_positions=128,
    )
    count_start(Heavy.WORLD)
    profile = ranks.measure([subject], Device.CPU, 2, lambda _: None, threads=1)
    assert profile.measured.ranks == 2
    assert profile.constants.link_bytes_per_second is not None
    (model,) = profile.models
    assert model.training is not None and model.generation is None
