"""Where weights go to generation engines, and where these give their memory back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.placement.transitions import with_transitions

from ..named_calls import calls


def share_ranks(call: ModelCall, other: ModelCall) -> bool:
    """Whether the other is not on ranks of its own."""
    return other.role is not None and not other.role.startswith("far")


def planned(ids: Iterable[str], releases: bool) -> list[ModelCall]:
    return with_transitions(calls(ids), {"actor"} if releases else set(), share_ranks)


def around(*ids: str, releases: bool) -> list[str]:
    return [call.id for call in planned(ids, releases)]


def test_weights_go_to_the_engines_once_for_all_calls_until_they_change() -> None:
    step = ("actor.generate", "reward.score", "actor.generate#2", "actor.train", "actor.generate#3")
    assert around(*step, releases=False) == [
        "actor.reshard",
        *("actor.generate", "reward.score", "actor.generate#2", "actor.train"),
        *("actor.reshard#3", "actor.generate#3"),
    ]


def test_memory_is_given_back_as_soon_as_something_else_needs_ranks() -> None:
    step = ("actor.generate", "reward.score", "actor.generate#2", "reward.score#2", "actor.train")
    assert around(*step, releases=True) == [
        *("actor.reshard", "actor.generate", "reward.score", "actor.generate#2"),
        *("actor.release#2", "reward.score#2", "actor.train"),
    ]


def test_a_forward_pass_between_needs_the_memory_too() -> None:
    step = ("actor.generate", "reference.log_probs", "actor.generate#2")
    assert around(*step, releases=True) == [
        *("actor.reshard", "actor.generate", "actor.release", "reference.log_probs"),
        *("actor.reshard#2", "actor.generate#2", "actor.release#2"),
    ]


def test_numerics_and_models_elsewhere_leave_memory_to_the_engines() -> None:
    step = ("actor.generate", "compute", "far_reward.log_probs", "actor.generate#2", "actor.train")
    assert around(*step, releases=True) == [
        *("actor.reshard", "actor.generate", "compute", "far_reward.log_probs"),
        *("actor.generate#2", "actor.release#2", "actor.train"),
    ]


def test_what_a_region_leaves_behind_is_not_known() -> None:
    """It may run or not, or once more."""
    step = ("actor.generate", "every-10/actor.generate", "actor.generate#2")
    for releases in (False, True):
        made = around(*step, releases=releases)
        assert [name for name in made if "reshard" in name] == [
            *("actor.reshard", "every-10/actor.reshard", "actor.reshard#2")
        ]
        assert sum("release" in name for name in made) == 3 * releases


def test_a_role_that_takes_over_weights_is_resharded_and_no_other() -> None:
    step = ("actor.generate", "other.generate", "other.copy_weights_from", "actor.generate#2")
    assert around(*step, "other.generate#2", releases=False) == [
        *("actor.reshard", "actor.generate", "other.reshard", "other.generate"),
        *("other.copy_weights_from", "actor.generate#2", "other.reshard#2", "other.generate#2"),
    ]


SITES = (
    *("actor.generate", "actor.train", "actor.log_probs", "reward.score", "compute"),
    *("reference.log_probs", "far_critic.train"),
    *("every-2/actor.generate", "every-2/actor.train"),
    *("repeat/actor.generate", "repeat/reference.log_probs", "repeat/compute"),
)


@pytest.mark.parametrize("releases", [False, True])
@given(st.lists(st.sampled_from(SITES), max_size=9), st.lists(st.integers(0, 3), min_size=6))
def test_no_call_generates_with_other_weights_or_beside_another_ones_memory(
    releases: bool, names: list[str], runs: list[int]
) -> None:
    """However often regions run: an engine's state followed through two passes."""
    ids = [f"{name}#{number}" for number, name in enumerate(names)]
    made = planned(ids, releases)
    version = 0
    held: int | None = None
    counts = itertools.cycle(runs)
    for _ in range(2):
        for region, body in itertools.groupby(made, lambda call: call.id.rpartition("/")[0]):
            inside = list(body)
            count = next(counts)
            times = {"": 1, "every-2": count % 2, "repeat": max(1, count)}[region]
            for call in inside * times:
                match call.kind:
                    case CallKind.RESHARD:
                        held = version
                    case CallKind.RELEASE:
                        held = None
                    case CallKind.GENERATE:
                        assert held == version
                    case CallKind.TRAIN | CallKind.INFER if not str(call.role).startswith("far"):
                        assert not releases or held is None
                        version += call.kind is CallKind.TRAIN
                    case _:
                        pass
        assert not releases or held is None, "the next pass begins with a checkpoint, or trains"
