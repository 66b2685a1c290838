"""ReaL's published rule for PPO and GRPO: devices and a cut for each kind of call, from nothing but
numbers of nodes and sizes of models. Pure.

Of N nodes with G devices, c = (tensor, stages), what is left of a mesh are replicas:

    call                          one node                      several nodes
    generation                    all, (1, max(2, N))           all, (1, max(2, N))
    training of the policy        half, (G/4, 1) or (G/2, 1)    its nodes n, (G/2, n)
    training of critics           the other half, likewise      the other nodes m, (G/2, m)
    frozen language models        all, (G/2, N)                 all, (G/2, N)
    reward models                 the policy's half, (G/4, 1)   half of the nodes h, (G/2, h)

On one node models of up to 7B have the smaller cut. n is the policy's share of the nodes by
sizes of models, rounded up, and all but one at most. Where nothing but the policy is trained:

    training of the policy        all, (min(4, G), N)
    inference                     all, (min(2, G/2), max(2, N))

What is different here, as no runtime executes it otherwise:
- Engines have no stages: they have as many tensor ranks as the rule has stages, at most a node's.
- A critic runs forward where it is trained, not on the other half of the nodes.
- Roles that copy each other's weights are all where the first of them is that is trained.
- A cut that a model or its devices do not allow becomes the nearest below, tensor ranks first;
  FSDP's roles are not cut. The rule has eight devices on a node; here it is in parts of them.
- The rule refuses models above 16B on one node; here memory says whether they fit.

Source: `heuristic` among the allocation modes of github.com/openpsi-project/ReaLHF
(experiments/common/ppo_exp.py, and grpo_exp.py of examples/new_algorithms).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from rlhf_api.plan import Mesh, ModelHead, Pool
from rlhf_planner.placement.placement import CallPlace, RolePlace
from rlhf_planner.problem.problem import ModelFacts, PlanningProblem
from rlhf_planner.strategies.parallelism import Cut, cut_place, cuts, engine_tensors
from rlhf_planner.strategies.placements import Placement, tenants

SMALL_PARAMETERS = 10 * 10**9
"""Below it a model counts as one of up to 7B: the rule knows sizes by name, and the next is 13B."""


class _Wanted(NamedTuple):
    """What the rule says of some calls."""

    mesh: Mesh
    """Devices, cut along `data` only."""
    cut: Cut
    """As the rule has it."""


@dataclass(frozen=True)
class _Nodes:
    """The devices of a pool, as the rule parts them."""

    pool: Pool

    @property
    def all(self) -> Mesh:
        return self.mesh(0, self.pool.num_devices)

    def mesh(self, first: int, end: int) -> Mesh:
        return Mesh(pool=self.pool.name, first_rank=first, data=end - first)

    def parted(self, share: float) -> tuple[Mesh, Mesh]:
        """A share of the nodes, rounded up, and the others, of which there is one at least; of one
        node two halves; both all of the only device."""
        nodes, per_node = self.pool.nodes, self.pool.devices_per_node
        total = self.pool.num_devices
        if total == 1:
            return self.all, self.all
        whole = min(ceil(nodes * share), nodes - 1) * per_node
        first = ceil(per_node / 2) if nodes == 1 else whole
        return self.mesh(0, first), self.mesh(first, total)

    def stages(self, mesh: Mesh) -> int:
        """As many as a mesh has nodes."""
        return max(1, mesh.num_devices // self.pool.devices_per_node)


def real_heuristic(problem: PlanningProblem) -> Placement:
    """Where roles are, and how they are cut.

    Args:
        problem: what is planned, on one pool.
    """
    (pool,) = problem.pools
    found: dict[str, RolePlace] = {}
    for roles in (tenant.roles for tenant in tenants(problem) if not tenant.generates):
        wanted = _wanted(problem, pool, roles)
        for role in roles:
            found[role] = _place(problem, problem.models[role], pool, wanted)
    return found


def _wanted(problem: PlanningProblem, pool: Pool, roles: Sequence[str]) -> _Wanted:
    """Of roles that are in one place."""
    models = problem.models
    trained = [role for role, facts in models.items() if facts.is_trained]
    others = [role for role in trained if role != problem.policy]
    role = next((each for each in roles if each in trained), roles[0])
    role = problem.policy if problem.policy in roles else role
    if not others:
        return _with_policy_only(pool, is_policy=role == problem.policy)
    return _with_critics(problem, _Nodes(pool), role, others)


def _with_policy_only(pool: Pool, is_policy: bool) -> _Wanted:
    nodes, per_node = pool.nodes, pool.devices_per_node
    if is_policy:
        return _Wanted(_Nodes(pool).all, Cut(min(4, per_node), nodes))
    return _Wanted(_Nodes(pool).all, Cut(max(1, min(2, per_node // 2)), max(2, nodes)))


def _with_critics(
    problem: PlanningProblem, nodes: _Nodes, role: str, critics: Sequence[str]
) -> _Wanted:
    facts, pool = problem.models[role], nodes.pool
    own = problem.models[problem.policy].shape.num_parameters
    share = own / (own + sum(problem.models[each].shape.num_parameters for each in critics))
    half, quarter = max(1, pool.devices_per_node // 2), max(1, pool.devices_per_node // 4)
    if role != problem.policy and not facts.is_trained and facts.head is ModelHead.LM:
        return _Wanted(nodes.all, Cut(half, pool.nodes))
    is_small = facts.shape.num_parameters < SMALL_PARAMETERS or not facts.is_trained
    tensor = quarter if pool.nodes == 1 and is_small else half
    first, second = nodes.parted(share if facts.is_trained else 0.5)
    mesh = second if role in critics else first
    return _Wanted(mesh, Cut(tensor, nodes.stages(mesh)))


def _place(problem: PlanningProblem, facts: ModelFacts, pool: Pool, wanted: _Wanted) -> RolePlace:
    """What is decided and cannot be there stays open, and is refused where plans are made."""
    place = CallPlace(wanted.mesh)
    legal = cuts(facts, place, pool)
    training = cut_place(place, _nearest_cut(legal, wanted.cut)) if legal else place
    if not facts.generates:
        return RolePlace(training, training)
    everywhere = CallPlace(_Nodes(pool).all)
    sizes = engine_tensors(problem, facts, everywhere, pool)
    if not sizes:
        return RolePlace(training, everywhere)
    stages = max(2, pool.nodes)
    tensor = max((size for size in sizes if size <= stages), default=min(sizes))
    return RolePlace(training, CallPlace(everywhere.mesh, tensor, is_chosen=True))


def _nearest_cut(legal: Sequence[Cut], wanted: Cut) -> Cut:
    """The legal one nearest below; where all are above, as one is told, the smallest."""
    below = [
        cut for cut in legal if cut.tensor <= wanted.tensor and cut.pipeline <= wanted.pipeline
    ]
    return max(below) if below else min(legal)
