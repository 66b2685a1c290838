"""Scenarios of Megatron's engine, for test_megatron_engine: run on one rank, on two and on four.

Run as `python -m tests.rlhf_runtime.engines.megatron_engine_ranks RANK WORLD_SIZE FOLDER`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from rlhf_runtime.engines.megatron.engine import MegatronEngine, ShardingOptions

from ..world_of_processes import Scenario, run_scenarios
from .contract_setup import Setup
from .megatron_engine_cases import CASES, Case, names
from .training_contract import IN_HALF_PRECISION, ONCE, PER_MODEL


def setup_of(case: Case) -> Setup:
    sharding = ShardingOptions(case.sequence_parallel, case.distributed_optimizer)
    return Setup(MegatronEngine, case.mesh, {"sharding": sharding})


def scenarios(size: int) -> dict[str, Scenario]:
    """Those of a world of so many ranks."""
    setups = {where: setup_of(case) for where, case in CASES[size].items()}
    contract = PER_MODEL | ONCE | IN_HALF_PRECISION
    return {
        name: partial(contract[what], setup=setups[where], kind=kind)
        for name, (where, what, kind) in names(size).items()
    }


if __name__ == "__main__":
    world_size = int(sys.argv[2])
    run_scenarios(int(sys.argv[1]), world_size, Path(sys.argv[3]), scenarios(world_size))
