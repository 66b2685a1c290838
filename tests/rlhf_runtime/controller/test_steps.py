from collections.abc import Mapping
from types import MappingProxyType

import pytest

from rlhf_api.plan import GraphInputs, GraphName
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.calls.reports import CallReport, ScoringReport, Statistics
from rlhf_runtime.controller.call_names import CallNames
from rlhf_runtime.controller.scoring import is_unscored, require_scores
from rlhf_runtime.controller.steps import last_end, summarize
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.records import Span

NAMES = CallNames(Graph({}, GraphInputs(prompts=(), pretraining=()), (), (), ()))
"""Of a step with nothing to tell apart."""


def report(
    process: str, *work: tuple[str, float], statistics: Statistics | None = None, memory: int = 0
) -> CallReport:
    """What a process did: calls and their seconds, one after the other from time 100 on."""
    spans, begin = [], 100.0
    for call, seconds in work:
        spans.append(Span(process, "actor", call, begin, begin + seconds))
        begin += seconds
    return CallReport("actor.call", statistics or Statistics(), tuple(spans), memory)


def test_a_phase_takes_as_long_as_its_slowest_process() -> None:
    done = summarize(
        [
            report("rank 0", ("reshard", 1.0), ("generate", 4.0)),
            report("rank 1", ("reshard", 2.0), ("generate", 3.0)),
            report("reward", ("score", 0.5)),
            report("rank 0", ("log_probs", 1.0), ("values", 2.0)),
            report("rank 1", ("log_probs", 2.5)),
        ],
        100.0,
        109.0,
        NAMES,
    )
    assert done.phases == {
        "transition": 2.0,
        "generate": 4.0,
        "score": 0.5,
        "infer": 3.0,
    }
    assert done.seconds == 9.0


@pytest.mark.parametrize(
    ("start", "seconds"),
    [
        pytest.param(95.0, 14.0, id="clocks agree"),
        pytest.param(109.5, 9.0, id="a worker's clock is behind, or was set back"),
    ],
)
def test_a_pass_takes_some_time_whatever_clocks_say(start: float, seconds: float) -> None:
    reports = [report("rank 0", ("generate", 9.0))]
    assert summarize(reports, start, last_end(reports), NAMES).seconds == seconds


def test_a_pass_without_calls_takes_some_time() -> None:
    assert summarize([], 5.0, 5.0, NAMES).seconds > 0


def test_calls_of_the_data_host_are_no_phase() -> None:
    assert summarize([report("data", ("prompts", 1.0))], 0.0, 1.0, NAMES).phases == {}


def test_metrics_of_all_reports_are_put_together_and_tokens_taken_out() -> None:
    done = summarize(
        [
            report("rank 0", statistics=Statistics({"kl": (1.0, 4.0)}, {}, {"batch/tokens": 30.0})),
            report("rank 1", statistics=Statistics({"kl": (5.0, 2.0)}, {}, {"batch/tokens": 12.0})),
        ],
        0.0,
        1.0,
        NAMES,
    )
    assert done.metrics == {"kl": 1.0}
    assert done.tokens == 42


def test_spans_keep_their_order_and_memory_is_each_process_latest() -> None:
    reports = [
        report("rank 0", ("generate", 1.0), memory=5),
        report("rank 1", ("generate", 1.0), memory=6),
        report("rank 0", ("train", 1.0), memory=4),
    ]
    done = summarize(reports, 0.0, 1.0, NAMES)
    assert [(span.process, span.call) for span in done.spans] == [
        ("rank 0", "generate"),
        ("rank 1", "generate"),
        ("rank 0", "train"),
    ]
    assert done.memory == {"rank 0": 4, "rank 1": 6}


def test_calls_of_a_process_that_run_at_the_same_time_take_their_time_once() -> None:
    """Two parts from 100 to 103 and from 102 to 104, another one from 106 on."""
    spans = [Span("reward", "reward", "score", 100.0 + a, 100.0 + b) for a, b in PARTS]
    reports = [CallReport("reward.score", Statistics(), (span,), 0) for span in spans]
    assert summarize(reports, 100.0, 110.0, NAMES).phases == {"score": 5.0}


PARTS = ((0.0, 3.0), (2.0, 4.0), (6.0, 7.0))


def part(
    call: str,
    number: int,
    valid: int,
    round: int = 0,
    samples: int = 4,
    failed: Mapping[str, int] = MappingProxyType({}),
    **errors: str,
) -> CallReport:
    """What a host says of one part of a call that scores. Rewards with an error fail on the samples
    that are not valid, unless `failed` says otherwise."""
    failures = {
        name: (Failure(RewardFault.RAISED, text, "", "why"),) for name, text in errors.items()
    }
    num_failed = dict.fromkeys(errors, samples - valid) | dict(failed)
    scoring = ScoringReport(round, samples, valid, num_failed, failures)
    return CallReport(call, Statistics(), (), number, scoring)


def test_every_failure_is_kept_with_its_reward_call_by_call_and_round_by_round() -> None:
    reports = [
        part("reward.score", 0, 4),
        part("reward.score", 1, 2, exact="one"),
        part("reward.score", 2, 2, exact="two", other="three"),
        part("reward.score", 0, 3, round=1, exact="four"),
        part("cost.score", 0, 3, harm="five"),
    ]
    found = summarize(reports, 0.0, 1.0, NAMES).unscored
    assert [(name, failure.what) for name, failure in found] == [
        ("exact", "one"),
        ("exact", "two"),
        ("other", "three"),
        ("exact", "four"),
        ("harm", "five"),
    ]


def test_a_call_may_have_parts_of_which_nothing_was_scored() -> None:
    parts = [part("a", 0, 0, exact="no"), part("a", 1, 1), part("b", 0, 0, samples=0)]
    require_scores(parts, GraphName.STEP, 3)
    assert not is_unscored(parts)


def batch_failures(*onlys: bool) -> dict[str, tuple[Failure, ...]]:
    """Failures of a verifier, which have scores after all where it says so."""
    return {
        "exact": tuple(
            Failure(RewardFault.RAISED, f"it {number}", "", "why", only_together=only)
            for number, only in enumerate(onlys)
        )
    }


def test_what_has_scores_after_all_is_told_last_whichever_part_it_is_in() -> None:
    """The first part has five of these, as many as are told; a failure of the second is told."""
    founds = [batch_failures(*[True] * 5), batch_failures(False, True)]
    reports = [
        CallReport("a", Statistics(), (), number, ScoringReport(0, 4, 3, {}, found))
        for number, found in enumerate(founds)
    ]
    told = [failure for _, failure in summarize(reports, 0.0, 1.0, NAMES).unscored]
    assert [each.only_together for each in told] == [False, True, True, True, True]


def test_what_has_scores_after_all_is_not_why_nothing_is_scored() -> None:
    parts = [part("a", 0, 0, other="three")]
    scoring = ScoringReport(0, 4, 0, {"other": 4}, batch_failures(True))
    parts.append(CallReport("a", Statistics(), (), 1, scoring))
    with pytest.raises(NothingScored, match="service. other: raised: three: why$"):
        require_scores(parts, GraphName.STEP, 3)


@pytest.mark.parametrize("other", [part("b", 0, 4), part("a", 0, 4, round=1)])
def test_a_call_of_which_nothing_was_scored_ends_the_job(other: CallReport) -> None:
    """Whatever was in other calls, and in other rounds."""
    nothing = [part("a", 0, 0, exact="one"), part("a", 1, 0, exact="two", other="three")]
    with pytest.raises(NothingScored) as caught:
        require_scores([other, *nothing], GraphName.EVALUATION, 3)
    assert str(caught.value) == (
        "no sample could be scored: got errors of exact for all 8 responses of the evaluation "
        "after step 3; correct the verifier, or see to its service. exact: raised: one: why other: "
        "raised: three: why"
    )
    assert int(caught.value.exit_code) == 3


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([part("a", 0, 0), part("a", 1, 0)], id="abstained or cut off"),
        pytest.param([part("a", 0, 0, exact="no"), part("a", 1, 0)], id="failed on some"),
        pytest.param(
            [part("a", 0, 0, failed={"exact": 2, "other": 2}, exact="x", other="y")],
            id="each failed on its half",
        ),
    ],
)
def test_nothing_left_is_no_error_where_no_reward_failed_on_everything(
    parts: list[CallReport],
) -> None:
    require_scores(parts, GraphName.STEP, 3)
    assert is_unscored(parts) and summarize(parts, 0.0, 1.0, NAMES).is_unscored


def test_a_call_that_abstains_beside_one_that_scores_is_no_step_without_a_score() -> None:
    """It may be measured only."""
    assert not is_unscored([part("a", 0, 0), part("b", 0, 4), part("c", 0, 0)])


LEFT_OUT = Statistics(sums={"actor/empty_updates": 1.0})
TAKEN = Statistics(means={"critic/gradient_norm": (1.0, 1.0)})


@pytest.mark.parametrize(
    ("updates", "expected"),
    [([LEFT_OUT], True), ([LEFT_OUT, TAKEN], False), ([TAKEN], False), ([Statistics()], False)],
)
@pytest.mark.parametrize("verifiers", [[], [part("a", 0, 0)]], ids=["none", "abstaining"])
@pytest.mark.parametrize("method", ["scores", "scores_of_texts"])
def test_updates_tell_whether_what_a_reward_model_scores_counts(
    method: str, verifiers: list[CallReport], updates: list[Statistics], expected: bool
) -> None:
    """All may be cut off. An evaluation has no updates, but always a score."""
    trained = [report("rank 0", ("train", 1.0), statistics=one) for one in updates]
    assert is_unscored([report("rank 0", (method, 1.0)), *verifiers, *trained]) is expected


def test_updates_that_are_left_out_do_not_say_that_verifiers_gave_no_score() -> None:
    """DAPO leaves out groups whose responses all have the same score."""
    assert not is_unscored([part("a", 0, 4), report("rank 0", ("train", 1.0), statistics=LEFT_OUT)])
    assert is_unscored([part("a", 0, 0), report("rank 0", ("train", 1.0), statistics=TAKEN)])


def test_a_round_without_a_score_is_no_step_without_one() -> None:
    rounds = [part("a", 0, 0), part("a", 0, 1, round=1)]
    require_scores(rounds, GraphName.STEP, 3)
    assert not is_unscored(rounds) and not is_unscored([])


def test_a_pass_ends_with_its_last_call_whenever_the_driver_hears_of_it() -> None:
    reports = [report("rank 0", ("train", 5.0)), report("reward", ("score", 9.0))]
    assert last_end(reports) == max(span.end for each in reports for span in each.spans)
