"""One parallelism for everything, as for pretraining: all roles on all devices, all calls with the
same tensor ranks, stages and replicas. Pure.

    tensor   as few ranks of a node as fit
    stages   with as many tensor ranks as there can be, as few as fit
    data     the rest

Source: the baseline of ReaL (arXiv 2406.14088), section 8, which takes it from Megatron-LM's advice
for pretraining. Engines have no stages here, see symmetric_cuts.py.
"""

from __future__ import annotations

from rlhf_api.plan import Mesh
from rlhf_flow.planning.baselines.baseline import fitted_placement
from rlhf_flow.planning.baselines.symmetric_cuts import symmetric_placements
from rlhf_flow.planning.fitting import FittedJob
from rlhf_flow.planning.problem import PlanningProblem


def megatron_heuristic(problem: PlanningProblem) -> FittedJob | None:
    """The plan with the smallest common cut that fits. None: none does.

    Args:
        problem: what is planned, on one pool.

    Raises:
        PlanError, ManifestError: roles that no runtime has on the same devices.
    """
    (pool,) = problem.pools
    everywhere = Mesh(pool=pool.name, data=pool.num_devices)
    placements = symmetric_placements(problem, problem.models, everywhere)
    found = (fitted_placement(problem, placement) for _, placement in placements)
    return next((fitted for fitted in found if fitted is not None), None)
