"""ReaL's published rule for PPO and GRPO: devices and a cut for each kind of call. Pure.

The rule reads only the number of nodes and the sizes of models.

With N nodes of G devices and cuts (tensor, stages); the rest of a mesh is replicas:

    call                          one node                      several nodes
    generation                    all, (1, max(2, N))           all, (1, max(2, N))
    training of the policy        half, (G/4, 1) or (G/2, 1)    its nodes n, (G/2, n)
    training of critics           the other half, likewise      the other nodes m, (G/2, m)
    frozen language models        all, (G/2, N)                 all, (G/2, N)
    reward models                 the policy's half, (G/4, 1)   half of the nodes h, (G/2, h)

On one node models of up to 7B have the smaller cut. n is the policy's share of the nodes by sizes
of models, rounded up, and at most all but one. If only the policy is trained:

    training of the policy        all, (min(4, G), N)
    inference                     all, (min(2, G/2), max(2, N))

Deviations, where no runtime executes the original, stand as comments at their lines. The rule has
eight devices on a node; here it is in parts of a node. It refuses models above 16B on one node;
here memory decides. FSDP's roles are not cut.

Source: `heuristic` among the allocation modes of github.com/openpsi-project/ReaLHF
(experiments/common/ppo_exp.py, and grpo_exp.py of examples/new_algorithms).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead, Pool
from rlhf_planner.candidates.completions import cuts, engine_tensors
from rlhf_planner.candidates.placements import placement_units
from rlhf_planner.placement.strategy import Cut, EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem

# Smaller models count as 7B: the rule knows sizes by name, and the next one is 13B.
SMALL_PARAMETERS = 10 * 10**9


@dataclass(frozen=True)
class _Nodes:
    """The devices of a pool, as the rule divides them."""

    pool: Pool

    @property
    def all(self) -> Mesh:
        return self.mesh(0, self.pool.num_devices)

    def mesh(self, first: int, end: int) -> Mesh:
        return Mesh(pool=self.pool.name, first_rank=first, data=end - first)

    def split(self, share: float) -> tuple[Mesh, Mesh]:
        """Split the pool in two parts, by nodes; a single node by devices. A single device is both
        parts."""
        nodes, per_node = self.pool.nodes, self.pool.devices_per_node
        total = self.pool.num_devices
        if total == 1:
            return self.all, self.all
        full_nodes = min(ceil(nodes * share), nodes - 1) * per_node
        first = ceil(per_node / 2) if nodes == 1 else full_nodes
        return self.mesh(0, first), self.mesh(first, total)

    def stages(self, mesh: Mesh) -> int:
        """Number of nodes of a mesh."""
        return max(1, mesh.num_devices // self.pool.devices_per_node)


def real_heuristic(problem: PlanningProblem) -> JobStrategy:
    """The rule's placement with its cuts.

    Args:
        problem: the planning problem, on one pool.
    """
    (pool,) = problem.pools
    strategies: dict[str, RoleStrategy] = {}
    for roles in (unit.roles for unit in placement_units(problem) if not unit.generates):
        choice = _choice(problem, pool, roles)
        for role in roles:
            strategies[role] = _adapted(problem, role, choice)
    generating = (role for role, facts in problem.models.items() if facts.generates)
    return JobStrategy(strategies, {role: _engines(problem, role, pool) for role in generating})


def _choice(problem: PlanningProblem, pool: Pool, roles: Sequence[str]) -> RoleStrategy:
    """The rule's choice for roles that share devices, before its cut is adapted to their models."""
    # Roles that copy each other's weights must share devices: those of the policy, or else of the
    # first trained one.
    models = problem.models
    trained = [role for role, facts in models.items() if facts.is_trained]
    others = [role for role in trained if role != problem.policy]
    role = next((candidate for candidate in roles if candidate in trained), roles[0])
    role = problem.policy if problem.policy in roles else role
    if not others:
        return _with_policy_only(pool, is_policy=role == problem.policy)
    return _with_critics(problem, _Nodes(pool), role, others)


def _with_policy_only(pool: Pool, is_policy: bool) -> RoleStrategy:
    nodes, per_node = pool.nodes, pool.devices_per_node
    if is_policy:
        return RoleStrategy(_Nodes(pool).all, min(4, per_node), nodes)
    return RoleStrategy(_Nodes(pool).all, max(1, min(2, per_node // 2)), max(2, nodes))


def _with_critics(
    problem: PlanningProblem, nodes: _Nodes, role: str, critics: Sequence[str]
) -> RoleStrategy:
    facts, pool = problem.models[role], nodes.pool
    own = problem.models[problem.policy].shape.num_parameters
    share = own / (own + sum(problem.models[critic].shape.num_parameters for critic in critics))
    half, quarter = max(1, pool.devices_per_node // 2), max(1, pool.devices_per_node // 4)
    if role != problem.policy and not facts.is_trained and facts.head is ModelHead.LM:
        return RoleStrategy(nodes.all, half, pool.nodes)
    is_small = facts.shape.num_parameters < SMALL_PARAMETERS or not facts.is_trained
    tensor = quarter if pool.nodes == 1 and is_small else half
    first, second = nodes.split(share if facts.is_trained else 0.5)
    # A critic runs forward on the devices that train it. The rule uses the other half of the nodes,
    # but no runtime moves its weights there.
    mesh = second if role in critics else first
    return RoleStrategy(mesh, tensor, nodes.stages(mesh))


def _adapted(problem: PlanningProblem, role: str, choice: RoleStrategy) -> RoleStrategy:
    """Adapt the rule's cut to a role."""
    devices = RoleStrategy(choice.devices)
    allowed = cuts(problem, role, devices)
    # An impossible fixed cut stays open here. `cut_roles` refuses it, with the field to change.
    return devices.with_cut(_nearest_cut(allowed, choice.cut)) if allowed else devices


def _engines(problem: PlanningProblem, role: str, pool: Pool) -> EngineStrategy:
    """The engines of a role."""
    everywhere = EngineStrategy(_Nodes(pool).all)
    sizes = engine_tensors(problem, role, everywhere.devices)
    if not sizes:
        return everywhere
    # Engines have no stages: they get as many tensor ranks as the rule has stages, at most a
    # node's.
    stages = max(2, pool.nodes)
    tensor = max((size for size in sizes if size <= stages), default=min(sizes))
    return replace(everywhere, tensor=tensor)


def _nearest_cut(allowed: Sequence[Cut], target: Cut) -> Cut:
    """The allowed cut nearest below; if all are above, the smallest."""
    below = [
        cut for cut in allowed if cut.tensor <= target.tensor and cut.pipeline <= target.pipeline
    ]
    # Tuples compare tensor ranks first, then stages.
    return max(below) if below else min(allowed)
