from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf_runtime.controller.equal_rewards import EqualRewards

EQUAL, MIXED = (0.1, 0.0), (0.1, 0.5)


def notices(steps: Sequence[tuple[float, float]], first: int = 1) -> list[int]:
    """Steps with a notice, of steps with a mean and a deviation of their rewards."""
    rewards = EqualRewards("reward/mean")
    return [
        step
        for step, (mean, std) in enumerate(steps, start=first)
        if rewards.record_step(step, {"reward/mean": mean, "reward/std": std})
    ]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([EQUAL] * 12, [5]),
        ([EQUAL] * 4, []),
        ([(0.1 + 1e-9, 1e-9), *[EQUAL] * 5], [5]),
        ([EQUAL, MIXED, *[EQUAL] * 9], []),
        ([MIXED, *[EQUAL] * 9], []),
        ([*[EQUAL] * 4, (0.2, 0.0), *[EQUAL] * 9], []),
    ],
)
def test_equal_rewards_of_the_first_steps_are_a_notice_once(
    steps: list[tuple[float, float]], expected: list[int]
) -> None:
    assert notices(steps) == expected


def test_after_a_resume_nothing_is_known_of_the_first_steps() -> None:
    assert notices([EQUAL] * 12, first=4) == []


def test_the_notice_names_the_value() -> None:
    rewards = EqualRewards("cost/mean")
    told = [
        rewards.record_step(step, {"cost/mean": -1.0, "cost/std": 0.0, "reward/mean": float(step)})
        for step in range(1, 6)
    ]
    assert told[-1].startswith("all rewards of the first 5 steps are -1, so nothing can be learned")


@pytest.mark.parametrize(
    ("headline", "metrics"),
    [
        (None, {"reward/mean": 0.0, "reward/std": 0.0}),
        ("reward/mean", {}),
        ("reward/mean", {"reward/mean": 0.0}),
    ],
)
def test_without_rewards_there_is_no_notice(
    headline: str | None, metrics: dict[str, float]
) -> None:
    rewards = EqualRewards(headline)
    assert not any(rewards.record_step(step, metrics) for step in range(1, 8))
