"""Public readings can be traced, and the planner's figures are near them."""

from __future__ import annotations

import re
from collections import Counter

import pytest


def test_every_reading_names_a_source_and_its_commit() -> None:
    from readings_data import read_readings

    readings = read_readings()
    assert len({reading.name for reading in readings}) == len(readings) >= 20
    for reading in readings:
        assert reading.source.startswith(("https://", "docs/")), reading.name
        file = re.match(r"https://github.com/[^/]+/[^/]+/blob/([0-9a-f]{40})/", reading.source)
        assert reading.commit == (file[1] if file else ""), reading.name
        assert file or "/blob/" not in reading.source, reading.name


def test_readings_cover_devices_engines_and_parts_of_a_step() -> None:
    from readings_data import Kind, read_readings

    readings = read_readings()
    assert {reading.kind for reading in readings} == {*Kind}
    gpus = {reading.gpu for reading in readings}
    assert gpus >= {"A100-80G", "H100", "H200", "B200"}
    assert {r.engine for r in readings if r.kind in (Kind.TRAIN, Kind.STEP)} == {"FSDP", "Megatron"}


def test_parameters_rest_on_several_readings_and_most_readings_are_tests() -> None:
    from readings_data import Parameter, read_readings

    parameters = Counter(reading.parameter for reading in read_readings())
    assert all(parameters[parameter] >= 2 for parameter in Parameter), parameters
    assert parameters[None] > 2 * sum(parameters[parameter] for parameter in Parameter)


def test_all_times_are_within_a_factor_and_most_are_close() -> None:
    from readings_data import read_readings
    from readings_ours import ours

    apart = {}
    for reading in read_readings():
        ratio = reading.ratio(ours(reading))
        apart[reading.name] = max(ratio, 1 / ratio)
    assert max(apart.values()) < 1.6, apart
    assert sum(ratio <= 1.25 for ratio in apart.values()) >= 0.7 * len(apart), apart


def test_readings_that_are_not_close_are_those_called_unexplained() -> None:
    from readings_data import read_readings
    from readings_ours import ours

    for reading in read_readings():
        ratio = reading.ratio(ours(reading))
        assert bool(reading.unexplained) == (max(ratio, 1 / ratio) > 1.25), (reading.name, ratio)


@pytest.mark.parametrize(
    ("lengths", "packs"), [([4, 4, 4], 3), ([3, 3, 1, 1], 2), ([4, 3, 2, 1], 2), ([], 0)]
)
def test_sequences_are_packed_longest_first(lengths: list[float], packs: int) -> None:
    from readings_ours import _num_packs

    assert _num_packs(lengths, 5) == packs


def test_padded_stages_and_logits_of_prompts_take_longer() -> None:
    from dataclasses import replace

    from readings_data import read_readings
    from readings_ours import ours

    step = next(r for r in read_readings() if r.name.startswith("32B on 32 H100"))
    assert step.pads_stages and step.scores_prompts
    unscored = ours(replace(step, scores_prompts=False, prompt=1000.0))
    assert ours(replace(step, prompt=1000.0)) > unscored
    assert ours(step) > ours(replace(step, pads_stages=False))


@pytest.mark.parametrize(("unit", "ratio"), [("", 2.0), ("tokens/s/GPU", 0.5)])
def test_a_ratio_is_one_of_times(unit: str, ratio: float) -> None:
    from readings_data import Kind, Reading

    reading = Reading("a", Kind.TRAIN, 10.0, "docs/a", "H100", unit=unit)
    assert reading.ratio(20.0) == ratio


def test_a_share_of_recomputation_is_between_none_and_all() -> None:
    from dataclasses import replace

    from readings_data import Kind, read_readings
    from readings_ours import ours

    reading = next(r for r in read_readings() if r.kind is Kind.TRAIN and r.unit)
    none, half, whole = (1 / ours(replace(reading, recompute=share)) for share in (0.0, 0.5, 1.0))
    assert none < half < whole and half == pytest.approx((none + whole) / 2)
