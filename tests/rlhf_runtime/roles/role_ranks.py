"""Scenarios of roles and operations, for test_roles: run on one rank or on two.

Run as `python -m tests.rlhf_runtime.roles.role_ranks RANK WORLD_SIZE FOLDER`. Oracles see the whole
batch at once, row by row. All share one world of each size: its start is what costs time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ...depth import sample
from ..world_of_processes import Scenario, run_scenarios
from . import (
    conversation_scenarios,
    critic_scenarios,
    few_rows_scenarios,
    inference_scenarios,
    invariance_scenarios,
    mask_scenarios,
    operation_scenarios,
    policy_scenarios,
    preference_scenarios,
    starting_scenarios,
    supervised_scenarios,
)

TABLES = (
    policy_scenarios.SCENARIOS,
    supervised_scenarios.SCENARIOS,
    critic_scenarios.SCENARIOS,
    preference_scenarios.SCENARIOS,
    inference_scenarios.SCENARIOS,
    operation_scenarios.SCENARIOS,
    mask_scenarios.SCENARIOS,
    invariance_scenarios.SCENARIOS,
    starting_scenarios.SCENARIOS,
    conversation_scenarios.SCENARIOS,
    few_rows_scenarios.SCENARIOS,
)
SCENARIOS: dict[str, Scenario] = {
    name: scenario for table in TABLES for name, scenario in table.items()
}
assert len(SCENARIOS) == sum(map(len, TABLES)), "two scenarios have one name"


def scenarios(size: int) -> Mapping[str, Scenario]:
    """The scenarios of a world that this session runs: on one rank every fourth one."""
    every = list(SCENARIOS)
    usual = len(every) // 4 if size == 1 else len(every)
    return {name: SCENARIOS[name] for name in sample(0, every, usual)}


if __name__ == "__main__":
    world_size = int(sys.argv[2])
    run_scenarios(int(sys.argv[1]), world_size, Path(sys.argv[3]), scenarios(world_size))
