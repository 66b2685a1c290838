"""Lower bounds of placements and layouts: times of calls within memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_planner.bounds.calls import NONE, Calls, CallTimeBounds, RoleConfig
from rlhf_planner.bounds.memory import BytesPerPhase, Capacity, MemoryBounds, capacity_of, uncut
from rlhf_planner.bounds.step import Seconds
from rlhf_planner.memory.choices import MemoryChoice, forced_recompute
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.offloading import offload_choices
from rlhf_planner.placement.placement import RolePlacement, device_groups
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.search_space import (
    ComputeConfig,
    Dimension,
    LayoutSpace,
    Option,
    fits,
    make_option,
    min_bytes_of,
    residual_bytes,
)
from rlhf_planner.strategies.parallelism import Cut, cuts, engine_tensors
from rlhf_planner.strategies.placements import Placement

# A config of a role, and the bytes of the placement's capacity that it uses.
RoleConfigBytes = tuple[RoleConfig, BytesPerPhase]

# Cache sizes are rounded up to multiples of this, so that few different ones are priced.
CACHE_STEP_BYTES = 2**27


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Lower bounds of the layouts of one problem."""

    problem: PlanningProblem
    seconds: CallTimeBounds
    """Lower bounds of calls' times."""
    memory: MemoryBounds
    """Lower bounds of roles' memory."""

    @cached_property
    def _pools(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.problem.pools}

    def placement_bounds(self, placement: Placement) -> Seconds | None:
        """Bound calls in a placement, each role as if it were alone. None: a model cannot be cut
        there, or an engine cannot be built."""
        bounds: dict[str, float] = {}
        for role, placement_of_role in placement.items():
            mesh = placement_of_role.training.mesh
            cut_bounds = [
                self.seconds.model_calls(role, mesh, cut)
                for cut in self._cuts(role, placement_of_role)
            ]
            choices = [cut_bounds]
            if self.problem.models[role].generates:
                engines = placement_of_role.generation.mesh
                sizes = self._engine_sizes(role, placement_of_role)
                choices.append(
                    [self.seconds.generate_calls(role, engines, size, None, NONE) for size in sizes]
                )
            for choice_bounds in choices:
                possible = [candidate for candidate in choice_bounds if candidate is not None]
                if not possible:
                    return None
                # Every call takes its own fastest choice, even if no single one is fastest for all.
                for call in possible[0]:
                    bounds[call] = min(choice_bound[call] for choice_bound in possible)
        return bounds

    def feasible_spaces(self, placement: Placement) -> Iterator[LayoutSpace]:
        """The pruned layouts of a placement that may be feasible, one space per way to offload
        roles."""
        for space in self.spaces(placement):
            pruned = space.pruned()
            if pruned is not None:
                yield pruned

    def spaces(self, placement: Placement) -> Iterator[LayoutSpace]:
        """All layouts of a placement, feasible or not; none if a model cannot be cut there, or an
        engine cannot be built."""
        crossing = self.seconds.crossing(placement)
        groups = device_groups(self.problem.pools, placement)
        for offload in offload_choices(self.problem, groups):
            capacity = capacity_of(self.problem, groups, offload)
            dimensions = tuple(self._dimensions(placement, capacity, crossing))
            # A dimension without options makes every layout infeasible.
            if all(dimension.options for dimension in dimensions):
                roles = offload.roles
                orders = self.seconds.steps.orders(placement, roles) if roles else ()
                yield LayoutSpace(placement, dimensions, capacity, crossing, orders)

    def node_bounds(self, space: LayoutSpace, assignment: tuple[int, ...]) -> Seconds | None:
        """Bound calls in a partial layout. None: no complete layout below it is feasible.

        Args:
            space: the layouts of a placement.
            assignment: options of the first dimensions.
        """
        domains = space.propagate(assignment)
        if domains is None:
            return None
        bounds: dict[str, float] = {}
        for dimension, options, residual in zip(space.dimensions, *domains, strict=True):
            bounded = [
                self._engine_seconds(space, dimension.role, option, residual)
                if dimension.is_engines
                else option.seconds
                for option in options
            ]
            for call in bounded[0]:
                bounds[call] = min(option_bounds[call] for option_bounds in bounded)
        # Loads and offloads are in the seconds of the cuts' options.
        return bounds | self._reshards(space, domains.options)

    def _reshards(
        self, space: LayoutSpace, options: Sequence[tuple[Option, ...]]
    ) -> dict[str, float]:
        """Bounds of reshards, for roles with one cut and one size of engines left."""
        # A reshard depends on the cut and on the engines. While one of them is open,
        # `StepTimeBounds.step_seconds` counts its dispatch only.
        bounds: dict[str, float] = {}
        cut_of: dict[str, Cut] = {}
        for dimension, (first, *rest) in zip(space.dimensions, options, strict=True):
            if isinstance(first.choice, Cut):
                if not rest:
                    cut_of[dimension.role] = first.choice
            # The dimension of a role's cut comes before that of its engines.
            elif not rest and (cut := cut_of.get(dimension.role)):
                uncut_role = uncut(space.placement[dimension.role])
                bounds |= self.seconds.reshards(dimension.role, uncut_role, cut, first.choice)
        return bounds

    def feasible_choices(
        self, space: LayoutSpace, assignment: tuple[int, ...]
    ) -> Iterator[tuple[Seconds, MemoryChoice]]:
        """Compute configs of a complete layout that may be feasible and the fastest, with bounds of
        calls.

        Args:
            space: the layouts of a placement.
            assignment: options of all dimensions.
        """
        configs = self.role_configs(space, assignment)
        # Each role's configs are filtered next to the minimum of the others before the product.
        minimums = [min_bytes_of([memory for _, memory in of_role]) for of_role in configs]
        engines = [engine.min_bytes for _, engine in _engine_options(space, assignment)]
        residual = residual_bytes(space.capacity.spare, [*minimums, *engines])[: len(minimums)]
        # Dominated configs are left out: another one of the role needs no more time and
        # memory.
        for chosen in product(*map(_pareto_optimal, configs, residual)):
            seconds = self.config_bounds(space, assignment, chosen)
            if seconds is not None:
                yield seconds, self.memory_choice(space, chosen)

    def config_bounds(
        self, space: LayoutSpace, assignment: tuple[int, ...], configs: Sequence[RoleConfigBytes]
    ) -> Seconds | None:
        """Bound calls for one config per role. None: it does not fit."""
        engines = _engine_options(space, assignment)
        used = [*(used for _, used in configs), *(engine.min_bytes for _, engine in engines)]
        residual = residual_bytes(space.capacity.spare, used)
        # An item fits next to all others exactly if their sum fits, so checking the first is
        # enough.
        if not fits(used[0], residual[0]):
            return None
        bounds = {
            call: seconds for config, _ in configs for call, seconds in config.seconds.items()
        }
        # Moves depend on the config's bytes, not only on the role.
        for config, _ in configs:
            bounds |= self._moves(config.model, space.capacity)
        assigned = [
            d.options[number] for d, number in zip(space.dimensions, assignment, strict=True)
        ]
        bounds |= self._reshards(space, [(option,) for option in assigned])
        for (role, engine_option), free in zip(engines, residual[len(configs) :], strict=True):
            bounds |= self._engine_seconds(space, role, engine_option, free)
        return bounds

    def role_configs(
        self, space: LayoutSpace, assignment: tuple[int, ...]
    ) -> list[list[RoleConfigBytes]]:
        """All configs of each role in a layout."""
        configs_of_roles = []
        for dimension, number in zip(space.dimensions, assignment, strict=True):
            cut, role = dimension.options[number].choice, dimension.role
            if isinstance(cut, Cut):
                mesh = space.placement[role].training.mesh
                configs = self.seconds.configs(role, mesh, cut, space.crossing[role])
                configs_of_roles.append(
                    [(config, self._bytes_used(config.model, space.capacity)) for config in configs]
                )
        return configs_of_roles

    def memory_choice(self, space: LayoutSpace, configs: Sequence[RoleConfigBytes]) -> MemoryChoice:
        """Build the memory choice of one config per role."""
        models = [config.model for config, _ in configs]
        return MemoryChoice(
            micro_batch_tokens={model.role: model.micro_batch_tokens for model in models},
            recomputed=frozenset(
                model.role for model in models if model.is_trained and model.recompute
            ),
            forced_recompute=forced_recompute(self.problem),
            offload=space.capacity.offload,
        )

    def _bytes_used(self, model: RoleModel, capacity: Capacity) -> BytesPerPhase:
        depth, tokens = capacity.offload.depth_of(model.role), model.micro_batch_tokens
        peak = self.memory.role_bytes(model.role, model.mesh, tokens, model.recompute, depth)
        return capacity.bytes_of_role(model.role, peak)

    def _moves(self, model: RoleModel, capacity: Capacity) -> Seconds:
        return self.seconds.offload_calls(model, capacity.offload.depth_of(model.role))

    def _dimensions(
        self, placement: Placement, capacity: Capacity, crossing: Mapping[str, Calls]
    ) -> Iterator[Dimension]:
        for role, role_placement in placement.items():
            mesh = role_placement.training.mesh
            yield Dimension(
                role,
                tuple(
                    make_option(cut, configs)
                    for cut in self._cuts(role, role_placement)
                    if (configs := self._configs(role, mesh, cut, capacity, crossing[role]))
                ),
            )
            if self.problem.models[role].generates:
                yield Dimension(
                    role,
                    tuple(self._engines(role, role_placement, capacity, crossing[role])),
                    is_engines=True,
                )

    def _configs(
        self, role: str, mesh: Mesh, cut: Cut, capacity: Capacity, crossing: Calls
    ) -> list[ComputeConfig]:
        return [
            ComputeConfig(
                {**config.seconds, **self._moves(config.model, capacity)},
                self._bytes_used(config.model, capacity),
            )
            for config in self.seconds.configs(role, mesh, cut, crossing)
        ]

    def _engines(
        self, role: str, role_placement: RolePlacement, capacity: Capacity, crossing: Calls
    ) -> Iterator[Option]:
        uncut_role = uncut(role_placement)
        for size in self._engine_sizes(role, role_placement):
            seconds = self.seconds.generate_calls(
                role, uncut_role.generation.mesh, size, None, crossing
            )
            if seconds is not None:
                cache = self.memory.min_cache(role, uncut_role, size)
                used = capacity.bytes_of_engines(
                    role, self.memory.engine_bytes(role, uncut_role, size), cache
                )
                yield make_option(size, [ComputeConfig(seconds, used)])

    def _engine_seconds(
        self, space: LayoutSpace, role: str, engines: Option, residual: BytesPerPhase
    ) -> Seconds:
        """Bounds of calls that generate, with the largest cache that fits."""
        uncut_role, tensor = uncut(space.placement[role]), engines.choice
        assert isinstance(tensor, int)
        min_cache = self.memory.min_cache(role, uncut_role, tensor)
        spare = min(
            residual[cell] - engines.min_bytes[cell] for cell in space.capacity.caches_of(role)
        )
        # Rounding up keeps this a lower bound: a larger cache never generates more slowly.
        rounded = -(-(min_cache + spare) // CACHE_STEP_BYTES) * CACHE_STEP_BYTES
        cache = min(self.memory.max_cache(role, uncut_role, tensor), rounded)
        bounds = self.seconds.generate_calls(
            role, uncut_role.generation.mesh, tensor, cache, space.crossing[role]
        )
        assert bounds is not None
        return bounds

    def _cuts(self, role: str, role_placement: RolePlacement) -> tuple[Cut, ...]:
        pool = self._pools[role_placement.training.mesh.pool]
        return cuts(self.problem.models[role], role_placement.training, pool)

    def _engine_sizes(self, role: str, role_placement: RolePlacement) -> tuple[int, ...]:
        pool = self._pools[role_placement.generation.mesh.pool]
        return engine_tensors(
            self.problem, self.problem.models[role], role_placement.generation, pool
        )


def _engine_options(space: LayoutSpace, assignment: tuple[int, ...]) -> list[tuple[str, Option]]:
    """Role and engines of each dimension that sizes engines."""
    pairs = zip(space.dimensions, assignment, strict=True)
    return [
        (dimension.role, dimension.options[number])
        for dimension, number in pairs
        if dimension.is_engines
    ]


def _pareto_optimal(
    configs: Sequence[RoleConfigBytes], residual: BytesPerPhase
) -> list[RoleConfigBytes]:
    """The Pareto-optimal configs (time, memory) that fit next to the others' minimum."""
    fitting = [config for config in configs if fits(config[1], residual)]
    optimal: list[RoleConfigBytes] = []
    # Sorted by time, so a config can only be dominated by one that was kept before.
    for config in sorted(
        fitting, key=lambda config: (sum(config[0].seconds.values()), sum(config[1]))
    ):
        if not any(_dominates(other, config) for other in optimal):
            optimal.append(config)
    return optimal


def _dominates(one: RoleConfigBytes, other: RoleConfigBytes) -> bool:
    (config, memory), (other_config, other_memory) = one, other
    return fits(memory, other_memory) and all(
        seconds <= other_config.seconds[call] for call, seconds in config.seconds.items()
    )
