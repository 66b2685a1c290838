"""One job under several placements: the same numbers, on parts of a pool and on two pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..timelines import overlapping_steps
from .cli import Finished, run
from .manifests import example
from .records import records, step_metrics

pytestmark = pytest.mark.ray

CHANGES: dict[str, Any] = {
    "algorithm": {"ppo": {"klCoefficient": 0.05}},
    "checkpoint": {"everySteps": 1},
    "rollout": {"samplesPerPrompt": 2},
    "schedule": {"steps": 3, "miniBatchPrompts": 4},
}
"""A critic and a reference, both from the actor's weights after its warm start."""

COMPARED = (
    *("actor/loss", "actor/gradient_norm", "actor/entropy", "critic/loss", "critic/gradient_norm"),
    *("critic/value_mean", "critic/explained_variance", "reward/kl", "reward/mean"),
)
APART = (("actor.train", "critic.train"), ("reference.log_probs", "critic.values"))
"""Calls that need nothing of each other, and where roles are placed apart no device either."""
TRAINED = {"roles": ["actor", "reference"]}
CRITIC = {"roles": ["critic"]}


def placed(place: Path, name: str, groups: list[dict[str, Any]], *words: object) -> Finished:
    return placed_by(place, name, {"type": "Manual", "groups": groups} if groups else {}, *words)


def placed_by(place: Path, name: str, placement: dict[str, Any], *words: object) -> Finished:
    sections = {"placement": placement}
    made = run(example("02", place / f"{name}.yaml", CHANGES, sections), place / name, *words)
    assert made.code == 0, made.output
    return made


@pytest.fixture(scope="module")
def colocated(place: Path) -> Finished:
    """Everything on one rank."""
    return placed(place, "colocated", [])


def assert_same(made: Finished, expected: Finished) -> None:
    steps = list(zip(step_metrics(made.folder), step_metrics(expected.folder), strict=True))
    assert len(steps) == 3
    for number, (got, wanted) in enumerate(steps, start=1):
        for name in COMPARED:
            assert got[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5), (number, name)


def test_a_critic_on_one_rank_of_the_actors_two(place: Path, colocated: Finished) -> None:
    groups = [TRAINED, CRITIC | {"firstDevice": 1}]
    assert_same(placed(place, "overlapping", groups, "--devices", 2), colocated)


@pytest.mark.parametrize(("kind", "devices"), [("Split", 2), ("Standalone", 3)])
def test_placements_by_what_roles_are(
    place: Path, colocated: Finished, kind: str, devices: int
) -> None:
    made = placed_by(place, kind.lower(), {"type": kind}, "--devices", devices)
    assert_same(made, colocated)
    assert any(overlapping_steps(made.folder, *calls) for calls in APART)


def test_two_pools_and_a_kill_in_the_second(place: Path, colocated: Finished) -> None:
    """The policy is not in the first pool; what was killed goes on from each pool's part."""
    groups = [CRITIC | {"pool": "critics"}, TRAINED | {"pool": "actors"}]
    made = placed(place, "apart", groups, "--inject", "kill:rank=1,phase=train,step=3")
    assert (made.folder / "model" / "model.safetensors").is_file()
    assert [record["step"] for record in records(made.folder, "step")][:2] == [1, 2]
    last = {record["step"]: record["metrics"] for record in records(made.folder, "step")}
    for number, wanted in enumerate(step_metrics(colocated.folder), start=1):
        for name in COMPARED:
            assert last[number][name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5), name


def test_what_was_saved_goes_on_under_another_placement(place: Path, colocated: Finished) -> None:
    """Generation on a part of a pool, then everything on one rank."""
    groups = [CRITIC | {"devices": 1}, TRAINED | {"firstDevice": 1}]
    placed(place, "another-placement", groups, "--steps", 2)
    made = placed(place, "another-placement", [], "--steps", 3)
    assert_same(made, colocated)
