"""Scenarios of Megatron's engine, for test_megatron_engine: run on one rank, on two and on four.

Run as `python -m tests.rlhf_runtime.engines.megatron_engine_ranks RANK WORLD_SIZE FOLDER`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from rlhf_runtime.engines.megatron.engine import Cutting, MegatronEngine

from ..world_of_processes import Scenario, run_scenarios
from .megatron_engine_cases import CASES
from .training_contract import ONCE, PER_MODEL, Setup


def scenarios(size: int) -> dict[str, Scenario]:
    """Those of a world of so many ranks."""
    found: dict[str, Scenario] = {}
    for where, case in CASES[size].items():
        cutting = Cutting(case.sequence_parallel, case.distributed_optimizer)
        setup = Setup(MegatronEngine, case.mesh, {"cutting": cutting})
        for name, scenario in PER_MODEL.items():
            for kind in case.kinds:
                found[f"{name} ({kind}; {where})"] = partial(scenario, setup=setup, kind=kind)
        for name, scenario in ONCE.items():
            found[f"{name} ({where})"] = partial(scenario, setup=setup, kind=case.kinds[0])
    return found


if __name__ == "__main__":
    world_size = int(sys.argv[2])
    run_scenarios(int(sys.argv[1]), world_size, Path(sys.argv[3]), scenarios(world_size))
