"""Times of the calls of a step.

Train, Infer, Generate         see train_and_infer.py and generation.py
Reshard, Load, Offload, Copy   see transfers.py
Release                        see transfers.py
Compute                        the time of every call: its dispatch, and the columns it reads
Finish                         the end of a Generate that few engines finish, see
                               generation.py; the Generate is then shorter
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, OffloadDepth
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_planner.cost.batches import (
    call_batch,
    generation_call,
    mini_batches,
    num_token_columns,
    pretraining_batch,
)
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.fusion import Fusion
from rlhf_planner.cost.generation import SplitGeneration, generate_seconds
from rlhf_planner.cost.layers import LayerSeconds
from rlhf_planner.cost.measured_layers import layers_of
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.cost.transfers import (
    DISPATCH_SECONDS,
    columns_seconds,
    copy_seconds,
    load_seconds,
    offload_seconds,
    release_seconds,
    reshard_seconds,
)
from rlhf_planner.memory.generation import generation_load, generation_weight_bytes
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.placement.strategy import EngineStrategy
from rlhf_planner.problem.problem import PlanningProblem


def train_call_seconds(
    problem: PlanningProblem, call: ModelCall, model: RoleModel, links: Links
) -> CallSeconds:
    """Seconds of a call that trains.

    Args:
        problem: the planning problem.
        call: of its step.
        model: the role.
        links: of its pool.
    """
    assert isinstance(call.options, TrainOptions)
    # With one mini-batch per epoch the updates are the epochs.
    layers, epochs = _layers(model, links), call.options.loss.updates(1)
    parts = mini_batches(problem, call)
    own = train_seconds(model, call_batch(problem, call), layers, links, parts, epochs)
    if not call.options.auxiliary:
        return own
    others = pretraining_batch(problem.workload)
    # Batches of auxiliary losses are further micro-batches of the same updates, so they add no
    # optimizer step.
    auxiliary = train_seconds(model, others, layers, links, parts, epochs)
    auxiliary = replace(auxiliary, optimizer=0.0).times(len(call.options.auxiliary))
    return in_turn([own, auxiliary])


def infer_batch_seconds(batch: CallRows, model: RoleModel, links: Links) -> CallSeconds:
    """Seconds of a forward call over some rows."""
    return infer_seconds(model, batch, _layers(model, links), links)


def generate_call_seconds(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    engines: EngineStrategy,
    links: Links,
) -> CallSeconds:
    """Seconds of a call that generates.

    Args:
        problem: the planning problem.
        call: of its step.
        model: the role.
        engines: with a size and a cache.
        links: of their pool.
    """
    batch = call_batch(problem, call)
    assert engines.kv_cache_bytes is not None
    return generate_seconds(
        generation_load(problem, model, engines),
        generation_call(problem, call),
        engines.mesh,
        engines.kv_cache_bytes,
        batch.prompt,
        batch.response,
        _layers(model, links),
        links,
        problem.workload.conversations,
    )


def split_generation(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    engines: EngineStrategy,
    links: Links,
    fusion: Fusion,
) -> SplitGeneration:
    """A call that generates, of which few engines finish the last responses; arguments as for
    `generate_call_seconds`.

    Args:
        fusion: the finishing engines and the number of responses.
    """
    batch = call_batch(problem, call)
    assert engines.kv_cache_bytes is not None
    return SplitGeneration(
        load=generation_load(problem, model, engines),
        call=generation_call(problem, call),
        engines=engines.mesh,
        finish=fusion.mesh,
        threshold_rows=fusion.threshold_rows,
        kv_cache_bytes=engines.kv_cache_bytes,
        prompt=batch.prompt,
        response=batch.response,
        layers=_layers(model, links),
        links=links,
    )


def _layers(model: RoleModel, links: Links) -> LayerSeconds:
    return layers_of(links.hardware, model.shape, model.precision)


@dataclass(frozen=True, eq=False)
class CallCosts:
    """Times of the calls of a job's step, whatever the strategies of its roles.

    Plans and lower bounds both count with these, so that the bound of a complete strategy is its
    price.
    """

    problem: PlanningProblem
    links: Mapping[str, Links]
    """Links of every pool."""

    def on_role(
        self,
        call: ModelCall,
        model: RoleModel,
        *,
        crosses_nodes: bool,
        source: RoleModel | None = None,
    ) -> CallSeconds:
        """Seconds of a call on the ranks that hold a model: it trains the role or runs it forward,
        copies weights into it, or computes without a model.

        Args:
            call: of the step.
            model: the role.
            crosses_nodes: True if columns come from other nodes.
            source: the role whose weights are copied. None: their bytes do not count.
        """
        links = self.links[model.mesh.pool]
        match call.kind:
            case CallKind.TRAIN:
                seconds = train_call_seconds(self.problem, call, model, links)
            case CallKind.INFER:
                seconds = infer_batch_seconds(self._batches[call.id][0], model, links)
            case CallKind.COPY if source is not None:
                seconds = copy_seconds(source, model, links)
            case _:
                seconds = CallSeconds()
        return in_turn([self.columns(call, model.mesh, crosses_nodes=crosses_nodes), seconds])

    def generate(
        self, call: ModelCall, model: RoleModel, engines: EngineStrategy, *, crosses_nodes: bool
    ) -> CallSeconds:
        """Seconds of a call that generates; size and cache of the engines are not open."""
        links = self.links[model.mesh.pool]
        seconds = generate_call_seconds(self.problem, call, model, engines, links)
        return in_turn([self.columns(call, engines.mesh, crosses_nodes=crosses_nodes), seconds])

    def move(self, kind: CallKind, model: RoleModel, depth: OffloadDepth | None) -> CallSeconds:
        """Seconds of a load or an offload."""
        seconds = load_seconds if kind is CallKind.LOAD else offload_seconds
        depth = depth or OffloadDepth.NOTHING
        return dispatched(seconds(model, depth, self.links[model.mesh.pool]))

    def reshard(self, model: RoleModel, engines: EngineStrategy) -> CallSeconds:
        """Seconds of a reshard of a role's weights to its engines."""
        trained = generation_load(self.problem, model, engines).trained
        return dispatched(reshard_seconds(trained, engines.mesh, self.links[model.mesh.pool]))

    def release(self, model: RoleModel, engines: EngineStrategy) -> CallSeconds:
        """Seconds of a release of a role's engines, and of mapping their memory again; the size of
        the engines is not open, an open cache counts as none."""
        load = generation_load(self.problem, model, engines)
        weights = generation_weight_bytes(load, engines.mesh.tensor)
        cache = engines.kv_cache_bytes or 0
        return dispatched(release_seconds(weights + cache, self.links[engines.devices.pool]))

    def columns(
        self, call: ModelCall, mesh: Mesh, *, crosses_nodes: bool, batch: CallRows | None = None
    ) -> CallSeconds:
        """Seconds of a call's dispatch, and of the columns that it reads.

        Args:
            call: of the step.
            mesh: its ranks.
            crosses_nodes: True if columns come from other nodes.
            batch: some of its rows. None: all.
        """
        all_rows, number = self._batches[call.id]
        links = self.links[mesh.pool]
        return columns_seconds(
            batch or all_rows, number, mesh.data, links, crosses_nodes=crosses_nodes
        )

    @cached_property
    def _batches(self) -> Mapping[str, tuple[CallRows, int]]:
        """Rows of each call, and its number of columns with a value per token."""
        return {
            call.id: (call_batch(self.problem, call), num_token_columns(call))
            for call in self.problem.graphs[GraphName.STEP].calls
        }


def dispatched(seconds: CallSeconds) -> CallSeconds:
    """Add the dispatch of a call that reads no columns."""
    return in_turn([CallSeconds(transfer=DISPATCH_SECONDS), seconds])
