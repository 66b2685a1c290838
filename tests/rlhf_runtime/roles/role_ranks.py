"""Scenarios of roles and operations, for test_roles: run on one rank or on two.

Run as `python -m tests.rlhf_runtime.roles.role_ranks RANK WORLD_SIZE FOLDER`. Oracles see the whole
batch at once, row by row. All share one world of each size: its start is what costs time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..world_of_processes import Scenario, run_scenarios
from . import (
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
    few_rows_scenarios.SCENARIOS,
)
SCENARIOS: dict[str, Scenario] = {
    name: scenario for table in TABLES for name, scenario in table.items()
}
assert len(SCENARIOS) == sum(map(len, TABLES)), "two scenarios have one name"


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
