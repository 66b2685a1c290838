"""A tiny model is measured as `rlhf profile` does it; what is found is looked at, not how long it
took."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.model_config import read_shape
from rlhf_flow.planning.seconds.layers import WHOLE, LayerKind
from rlhf_flow.planning.seconds.measured_layers import hardware_for, layers_for
from rlhf_flow.planning.seconds.presets import CPU
from rlhf_flow.planning.seconds.profile import Profile
from rlhf_runtime.errors import ProfilingFailed
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.profiling.generation import DECODED, Run, StepSeconds, cached_curve, runs_for
from rlhf_runtime.profiling.ranks import measure
from rlhf_runtime.profiling.subjects import Subject
from rlhf_runtime.profiling.training import Point, fewer, points


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
    """All that the time model asks for is there, and more work takes no less."""
    told: list[str] = []
    profile = measure([subject], Device.CPU, 1, told.append, threads=1)
    assert Profile.model_validate_json(profile.to_json()) == profile
    assert profile.measured.device is Device.CPU and profile.measured.vllm is not None
    assert profile.constants.memory_bytes_per_second > 0
    assert profile.constants.link_bytes_per_second is None
    hardware = hardware_for(CPU, profile)
    layers = layers_for(subject.shape, Precision.FLOAT32, hardware, profile)
    for kind in LayerKind:
        few, many = (layers.forward(kind, WHOLE, tokens, 0).total for tokens in (16, 4096))
        assert 0 < few <= many
        for recompute in (False, True):
            few, many = (layers.backward(kind, WHOLE, n, 0, recompute).total for n in (16, 4096))
            assert 0 <= few <= many
    assert layers.optimizer(1e6) > 0
    few, many = (layers.decode(LayerKind.BLOCK, WHOLE, n, n * 16).total for n in (1, 64))
    assert 0 <= few <= many
    assert layers.decode(LayerKind.HEAD, WHOLE, 8, 0).total + hardware.engine_step_seconds > 0
    assert layers.prefill(LayerKind.BLOCK, WHOLE, 64, 64).total >= 0
    assert any("passes of" in text for text in told) and any("generation" in text for text in told)
    assert not multiprocessing.active_children()


def test_a_model_that_cannot_be_built_is_told(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such"}))
    broken = replace(subject, folder=tmp_path, generates=False)
    with pytest.raises(ProfilingFailed, match=r"got UnsupportedModel: .*no such(.|\n)*again"):
        measure([broken], Device.CPU, 1, lambda _: None, threads=1)


def test_points_reach_from_few_tokens_to_the_most() -> None:
    found = points(4096, 2048)
    assert [at.tokens for at in found if at.length <= 32] == [16, 64, 256, 1024, 4096]
    assert {at.length for at in found if at.tokens == 1024} == {32, 128, 512, 1024}
    assert max(at.length for at in points(64, 128)) == 128
    assert {at.tokens for at in fewer(found)} == {16, 256, 1024, 4096}
    assert Point(2, 16).pairs == 2 * 16 * 16 / 2 and Point(2, 16).predicted == 16


@pytest.mark.parametrize("longest", [40, 128, 2048, 131072])
@pytest.mark.parametrize("max_sequences", [1, 8, 64, 1000])
def test_runs_tell_everything_apart_that_they_are_for(max_sequences: int, longest: int) -> None:
    """Equally many tokens in prompts of other lengths; equally many sequences with other caches;
    more and fewer sequences."""
    found = runs_for(max_sequences, longest)
    assert max(run.sequences for run in found) <= max(8, min(256, max_sequences))
    assert max(run.prompt for run in found) < longest - DECODED
    assert {run.sequences for run in found} >= {1, 2, 8}
    assert len({run.prompt for run in found if run.sequences == 8}) > 1
    longer = Run(2, max(run.prompt for run in found if run.sequences == 2))
    assert len({run.pairs for run in found if run.tokens == longer.tokens}) > 1


@pytest.mark.parametrize("longest", [64, 128, 2048])
def test_points_compare_lengths_whatever_a_model_takes(longest: int) -> None:
    found = points(64, longest)
    assert max(at.length for at in found) <= longest
    assert len({at.pairs for at in found if at.tokens == 1024}) > 1


def test_what_the_cache_takes_is_the_difference_of_equally_many_sequences() -> None:
    """1 second more for 8 x 240 tokens more."""
    few, many, other = Run(8, 16), Run(8, 256), Run(1, 16)
    taken = {few: 2.0, many: 3.0, other: 1.0}
    curve = cached_curve({run: StepSeconds(0.0, seconds) for run, seconds in taken.items()})
    assert curve(0) == 0
    assert curve(2 * 8 * 240) == pytest.approx(2.0)
