import math
from dataclasses import replace
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import GenerateOptions, ModelCall
from rlhf_runtime.calls.ended_rows import ScoreCall
from rlhf_runtime.calls.reports import CallReport, ScoringReport, Statistics, merge_statistics
from rlhf_runtime.calls.requests import (
    CallRequest,
    ColumnSource,
    InputBatch,
    Segment,
    returned_columns,
)
from rlhf_runtime.dataplane.partition import BatchShape, Slice
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.spread import Spread

GENERATE = ModelCall(
    id="actor.generate",
    role="actor",
    method="generate",
    kind=CallKind.GENERATE,
    reads=("prompt_tokens", "prompt_id"),
    writes=("response_tokens", "finished"),
    carries=("prompt_tokens", "prompt_id"),
    options=GenerateOptions(samples=4, temperature=1.0),
)


@settings(deadline=None)
@given(st.lists(st.integers(-99, 99), min_size=1), st.integers(0, 40), st.integers(0, 40))
def test_a_mean_of_parts_is_the_mean_of_everything(
    values: list[int], first: int, second: int
) -> None:
    begin, end = sorted((min(first, len(values)), min(second, len(values))))
    parts = [values[:begin], values[begin:end], values[end:]]
    merged = merge_statistics(
        [Statistics(means={"loss": (float(sum(part)), float(len(part)))}) for part in parts]
    )
    assert math.isclose(merged["loss"], sum(values) / len(values), abs_tol=1e-12)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=5), max_size=5))
def test_a_deviation_of_parts_is_that_of_everything(parts: list[list[float]]) -> None:
    spreads = [Spread.of(np.asarray(part, dtype=np.float32)) for part in parts]
    merged = merge_statistics([Statistics(spreads={"std": spread}) for spread in spreads])
    everything = np.asarray([value for part in parts for value in part], dtype=np.float64)
    if not len(everything):
        assert merged == {}, "nothing has no deviation"
    else:
        assert math.isclose(merged["std"], everything.std(), rel_tol=1e-9, abs_tol=1e-6)


def test_maxima_sums_and_means_of_ranks_and_calls_are_put_together() -> None:
    first = Statistics({"kl": (6.0, 3.0)}, {"longest": 7.0}, {"tokens": 10.0})
    second = Statistics({"kl": (1.0, 1.0), "clip": (0.0, 4.0)}, {"longest": -2.0}, {"tokens": 5.0})
    third = Statistics(maxima={"lowest": -3.0})
    assert merge_statistics([first, second, third]) == {
        "kl": 7.0 / 4.0,
        "clip": 0.0,
        "longest": 7.0,
        "lowest": -3.0,
        "tokens": 15.0,
    }


def test_a_mean_without_weight_is_left_out() -> None:
    assert merge_statistics([Statistics({"kl": (0.0, 0.0)}), Statistics({"kl": (0.0, 0.0)})]) == {}
    assert merge_statistics([]) == {}


def test_a_nan_is_never_hidden() -> None:
    nan = float("nan")
    for values in permutations([1.0, nan, 2.0]):
        assert math.isnan(
            merge_statistics([Statistics(maxima={"norm": value}) for value in values])["norm"]
        )
    assert math.isnan(
        merge_statistics([Statistics({"a": (nan, 1.0)}), Statistics({"a": (1.0, 1.0)})])["a"]
    )


def test_results_are_returned_in_the_order_of_their_names_with_those_carried() -> None:
    assert returned_columns(GENERATE) == (
        "finished",
        "prompt_id",
        "prompt_tokens",
        "response_tokens",
    )
    train = ModelCall("actor.train", "actor", "train", CallKind.TRAIN, ("advantages",), ())
    assert returned_columns(train) == ()


def test_what_is_read_is_what_was_sent() -> None:
    first, second = Segment(2, {"base": "values"}), Segment(1, {"base": "scores"}, groups_before=2)
    sources = (ColumnSource((first, second)), ColumnSource((Segment(1, {"kl": "kl"}, repeat=3),)))
    batches = (InputBatch(BatchShape(4, 2)), InputBatch(BatchShape(9)))
    nothing = CallRequest(GENERATE, 3, GraphName.STEP, "one", batches, 3, 2, num_weight_changes=4)
    on_data = replace(nothing, reads_samples=False)
    scored = replace(nothing, score_calls=(ScoreCall("reward.score", "reward"),))
    told = (batches[0]._replace(sources=sources), batches[1])
    batch_slice = replace(nothing, batches=told, batch_slice=Slice(1, 3))
    for request in (replace(nothing, batches=told), batch_slice, on_data, scored, nothing):
        header, own, *shards = request.to_message(["a", "b", "c", "d"])
        assert CallRequest.from_message(header, own) == request
        assert shards == ["a", "b", "c", "d"]
        assert request.to_message([], request.header()) == (header, own)
    spreads = {"reward/std": Spread(2, 1.0, 0.5)}
    statistics = Statistics({"kl": (1.0, 2.0)}, spreads=spreads)
    failures = {"exact": (Failure(RewardFault.RAISED, "a response", "train.jsonl, line 3", "why"),)}
    report = CallReport(
        "reward.score", statistics, (), 5, ScoringReport(1, 4, 3, {"exact": 1}, failures)
    )
    assert CallReport.from_bytes(report.to_bytes()) == report
