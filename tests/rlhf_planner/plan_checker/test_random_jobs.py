"""Plans of random jobs are valid, whoever checks them."""

from __future__ import annotations

from random import Random

import pytest

from rlhf_api.errors import ManifestError
from rlhf_flow.errors import PlanError
from rlhf_planner.plan import plan_problem

from ...depth import examples
from .everything import check
from .random_jobs import random_problem

JOBS_OF_A_SEED = 100


@pytest.mark.parametrize("seed", range(examples(3)))
def test_plans_are_valid(seed: int) -> None:
    """To try one job alone, draw as many as its number says before it."""
    random, planned = Random(seed), 0
    for number in range(JOBS_OF_A_SEED):
        problem = random_problem(random)
        try:
            plan = plan_problem(problem, max_candidates=3)
        except (PlanError, ManifestError):
            continue
        planned += 1
        try:
            check(problem, plan)
        except AssertionError as error:
            raise AssertionError(f"job {number} of seed {seed}: {problem}") from error
    assert planned > JOBS_OF_A_SEED / 2
