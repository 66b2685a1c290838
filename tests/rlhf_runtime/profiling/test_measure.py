"""A tiny model is measured as `rlhf profile` does it; what is found is looked at, not how long it
took."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.problem.profile import Profile
from rlhf_runtime.errors import ProfilingFailed, UnsupportedModel
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.profiling.generation import (
    DECODED,
    EngineConfig,
    Run,
    StepSeconds,
    cached_curve,
    generation_curves,
    runs_for,
    world_name,
)
from rlhf_runtime.profiling.ranks import measure
from rlhf_runtime.profiling.subjects import Subject
from rlhf_runtime.profiling.training import Point, fewer, points
from rlhf_sizing.config import read_shape

from ...heavy_starts import Heavy, count_start


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tiny_llama_folder(0, tmp_path_factory.mktemp("model"))
    return Subject(
        name="actor",
        folder=folder,
        shape=read_shape(folder, ""),
        precision=Precision.FLOAT32,
        tensor=1,
        computes=True,
        generates=True,
        micro_batch_tokens=64,
        max_sequences=8,
        max_positions=128,
    )


@pytest.mark.ray
def test_a_tiny_model_is_measured(subject: Subject) -> None:
    """All that is asked for is there; of how long it took only that a file keeps it."""
    told: list[str] = []
    before = {*psutil.Process(os.getpid()).children()}
    count_start(Heavy.WORLD)
    count_start(Heavy.ENGINE)
    profile = measure([subject], Device.CPU, 1, told.append, threads=1)
    assert Profile.model_validate_json(profile.to_json()) == profile
    assert profile.measured.device is Device.CPU and profile.measured.vllm is not None
    assert profile.constants.link_bytes_per_second is None
    (model,) = profile.models
    assert model.training is not None and model.generation is not None
    assert model.training.forward.embedding.at == (16, 64, 1024)
    assert model.training.backward.embedding.at == (16, 64, 1024)
    assert model.training.recomputed.embedding.at == (16, 1024)
    assert model.generation.step.at == (1, 2, 8)
    assert any("passes of" in text for text in told) and any("generation" in text for text in told)
    # Python's own, which looks after semaphores, ends with this process.
    left = {*psutil.Process(os.getpid()).children()} - before
    commands = (" ".join(each.cmdline()) for each in left)
    assert [each for each in commands if "resource_tracker" not in each] == []


@pytest.mark.ray
def test_a_model_that_cannot_be_built_is_told(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such"}))
    count_start(Heavy.WORLD)
    broken = replace(subject, folder=tmp_path, generates=False)
    with pytest.raises(ProfilingFailed, match=r"got UnsupportedModel: .*no such(.|\n)*repeat"):
        measure([broken], Device.CPU, 1, lambda _: None, threads=1)


def test_points_reach_from_few_tokens_to_the_most() -> None:
    found = points(4096, 2048)
    assert [at.tokens for at in found if at.length <= 32] == [16, 64, 256, 1024, 4096]
    assert {at.length for at in found if at.tokens == 1024} == {32, 128, 512, 1024}
    assert max(at.length for at in points(64, 128)) == 128
    assert {at.tokens for at in fewer(found)} == {16, 256, 1024, 4096}
    assert Point(2, 16).pairs == 2 * 16 * 16 / 2 and Point(2, 16).predicted == 16


@pytest.mark.parametrize("longest", [2, 3, 16, 31, 32, 50, 64, 100, 127, 128, 2048, 100_000])
def test_points_keep_to_what_a_model_takes(longest: int) -> None:
    """And compare two lengths of equally many tokens."""
    for most_tokens in (1, 16, 100, 4096):
        for found in (asked := points(most_tokens, longest), fewer(asked)):
            assert max(at.length for at in found) <= longest
            assert len({at.length for at in found if at.tokens == 1024}) > 1


def test_runs_keep_to_what_a_model_takes() -> None:
    found = runs_for(8, 128)
    assert max(run.sequences for run in found) == 8 and max(run.prompt for run in found) == 118
    assert len({run.prompt for run in found if run.sequences == 8}) > 1


@given(st.integers(1, 300), st.integers(12, 5000))
def test_runs_tell_what_curves_need(max_sequences: int, longest: int) -> None:
    """Equally many sequences in two lengths, and equally many tokens, too, where that can be."""
    found = runs_for(max_sequences, longest)
    assert max(run.sequences for run in found) == min(max_sequences, 256)
    assert min(run.sequences for run in found) == 1
    assert all(run.prompt >= 1 and run.prompt + DECODED < longest for run in found)
    assert len({run.sequences for run in found}) < len(found) == len(set(found))
    assert max_sequences == 1 or len({run.tokens for run in found}) < len(found)
    generation_curves(*(dict.fromkeys(found, StepSeconds(1, 1)) for _ in "ab"), 1, 2)


def test_a_model_of_too_few_positions_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"got a model of 11 positions, allowed 12"):
        runs_for(8, 11)


@pytest.mark.parametrize(("max_sequences", "longest"), [(8, 128), (2, 2048), (64, 4096), (3, 20)])
def test_what_two_engines_take_is_told_apart(max_sequences: int, longest: int) -> None:
    """Seconds that are linear in all that curves are of are found again."""

    def taken(run: Run, num_layers: int) -> StepSeconds:
        step = 0.5 + 0.25 * run.sequences
        block = StepSeconds(2 * run.tokens + 0.125 * run.pairs, run.sequences + 0.5 * run.cached)
        return StepSeconds(
            step + 3 * run.tokens + num_layers * block.prefill, step + num_layers * block.decode
        )

    runs = runs_for(max_sequences, longest)
    low, high = ({run: taken(run, number) for run in runs} for number in (2, 5))
    found = generation_curves(low, high, 2, 5)
    for run in runs:
        assert found.step(run.sequences) == pytest.approx(0.5 + 0.25 * run.sequences)
        assert found.embedding(run.tokens) == pytest.approx(3 * run.tokens)
        assert found.sequences(run.sequences) == pytest.approx(run.sequences)
        assert found.cached(run.cached) == pytest.approx(0.5 * run.cached)
        whole = 2 * run.tokens + 0.125 * run.pairs
        assert found.prefill(run.tokens, run.pairs) == pytest.approx(whole)


def test_the_world_of_a_measurement_is_like_no_other(tmp_path: Path) -> None:
    def name(measurement: str) -> str:
        return world_name(EngineConfig(tmp_path / measurement / "model0-rank1" / "few", 1, 64))

    assert name("rlhf-profile-a") == "rlhf-profile-a-model0-rank1-1"
    assert name("rlhf-profile-a") != name("rlhf-profile-b")


def test_what_the_cache_takes_is_the_difference_of_equally_many_sequences() -> None:
    """1 second more for 8 x 240 tokens more."""
    few, many, other = Run(8, 16), Run(8, 256), Run(1, 16)
    taken = {few: 2.0, many: 3.0, other: 1.0}
    curve = cached_curve({run: StepSeconds(0.0, seconds) for run, seconds in taken.items()})
    assert curve(0) == 0
    assert curve(2 * 8 * 240) == pytest.approx(2.0)
