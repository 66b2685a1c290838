"""The planner's choice of generation groups against all of them, with layouts as they are sent."""

from __future__ import annotations

from itertools import combinations

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.plan_text import describe_groups
from rlhf_api.spec.models import TrainingEngineType
from rlhf_planner.memory.engine_groups import (
    TrainedModel,
    engine_meshes,
    grouping_reason,
    groupings,
    kept_bytes,
    weight_bytes,
)
from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import all_weights

from ...rlhf_runtime.reshard import model_layouts as ml

Groups = tuple[tuple[int, ...], ...]
FSDP = TrainingEngineType.FSDP

SHAPE = DecoderShape(
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=8,
    vocab_size=300,
    qkv_bias=True,
)
TRAINED = {
    "fsdp-8": (8, 1, 1),
    "1-1-8": (8, 1, 1),
    "1-8-1": (1, 1, 8),
    "1-4-2": (2, 1, 4),
    "1-2-4": (4, 1, 2),
    "2-2-2": (2, 2, 2),
    "2-4-1": (1, 2, 4),
    "4-2-1": (1, 4, 2),
    "4-1-2": (2, 4, 1),
}
"""data, pipeline, tensor; of p-t-d in the name."""


def mesh_of(name: str, first_rank: int = 0) -> Mesh:
    data, pipeline, tensor = TRAINED[name]
    return Mesh(pool="a", first_rank=first_rank, data=data, pipeline=pipeline, tensor=tensor)


def trained(name: str, number_bytes: int, shape: DecoderShape = SHAPE) -> TrainedModel:
    engine = FSDP if name.startswith("fsdp") else TrainingEngineType.MEGATRON
    return TrainedModel(shape, mesh_of(name), number_bytes, engine)


def source_of(shape: DecoderShape, model: TrainedModel) -> Layout:
    """What ranks train, as reshard lays it out: written down by other rules than the planner's."""
    shapes, mesh = ml.of_decoder(shape), model.mesh
    if model.engine is FSDP:
        return ml.fully_sharded(shapes, mesh.data)
    places = ml.training_places(mesh.pipeline, mesh.tensor, mesh.data)
    return ml.model_parallel(shapes, places, mesh.tensor, mesh.pipeline, shape.num_layers)


def moved(shape: DecoderShape, source: Layout, groups: Groups) -> int:
    """Elements that a reshard sends."""
    size = len(groups[0])
    places = {rank: (0, index) for group in groups for index, rank in enumerate(group)}
    in_order = [places[rank] for rank in range(source.world_size)]
    target = ml.model_parallel(source.shapes, in_order, size, 1, shape.num_layers)
    return sum(plan_reshard(source, target).traffic.received)


def all_groupings(ranks: tuple[int, ...], size: int) -> list[Groups]:
    """Every partition into ascending groups."""
    if not ranks:
        return [()]
    first, *others = ranks
    found = []
    for members in combinations(others, size - 1):
        left = tuple(rank for rank in others if rank not in members)
        found += [((first, *members), *rest) for rest in all_groupings(left, size)]
    return found


def chosen(model: TrainedModel, tensor: int, devices_per_node: int = 8) -> Mesh:
    return engine_meshes({"actor": model}, tensor, devices_per_node)["actor"]


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("tensor", [2, 4, 8])
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_kept_is_what_a_reshard_does_not_send(name: str, tensor: int, tied: bool) -> None:
    """To the byte, at every stride; and no stride moves less than the one that is chosen."""
    shape = SHAPE if not tied else DecoderShape(**{**vars(SHAPE), "tied_embeddings": True})
    model = trained(name, 2, shape)
    source, sent = source_of(shape, model), {}
    for engines in groupings(model.mesh, tensor, 8):
        sent[engines] = 2 * moved(shape, source, engines.tensor_groups)
        assert weight_bytes(model, engines) - kept_bytes(model, engines) == sent[engines]
    assert len(sent) == {2: 3, 4: 2, 8: 1}[tensor]
    best = min(sent, key=lambda engines: (sent[engines], engines.tensor_stride))
    assert chosen(model, tensor) == best


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *(("1-8-1", 2), ("1-8-1", 4), ("1-4-2", 2), ("1-4-2", 4), ("1-2-4", 2)),
        *(("2-4-1", 2), ("2-2-2", 2), ("fsdp-8", 2), ("fsdp-8", 4)),
    ],
)
def test_where_groups_do_not_grow_no_ascending_grouping_moves_less(name: str, tensor: int) -> None:
    model = trained(name, 2)
    source = source_of(SHAPE, model)
    best = min(moved(SHAPE, source, each) for each in all_groupings(tuple(range(8)), tensor))
    assert moved(SHAPE, source, chosen(model, tensor).tensor_groups) == best


@pytest.mark.parametrize(
    ("name", "tensor", "groups"),
    [
        ("1-4-2", 2, ((0, 2), (1, 3), (4, 6), (5, 7))),  # HybridFlow's, t / t_g = 2 apart
        ("1-8-1", 2, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("2-2-2", 2, ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("4-1-2", 2, ((0, 1), (2, 3), (4, 5), (6, 7))),  # all the same: the closest
        ("fsdp-8", 2, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("fsdp-8", 1, tuple((rank,) for rank in range(8))),
    ],
)
def test_groups_are_those_worked_out_by_hand(name: str, tensor: int, groups: Groups) -> None:
    assert chosen(trained(name, 4), tensor).tensor_groups == groups


def test_the_reason_says_what_need_not_be_sent() -> None:
    """On four FSDP ranks with engines of two. What is cut by rows in both: half of a rank's part
    where it trains rows of that part, 0 else; all ranks do in {0,2} and {1,3}, two in {0,1} and
    {2,3}. What generation cuts by columns, or not at all: a quarter."""
    model = TrainedModel(SHAPE, Mesh(pool="a", data=4), 4, FSDP)
    neighbours, apart = groupings(model.mesh, 2, 4)
    assert (neighbours.tensor_groups, apart.tensor_groups) == (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    by_rows = 4 * (3 * 64 * 64 + 3 * 64 + 2 * 128 * 64) + 2 * 300 * 64
    by_columns = 4 * (64 * 64 + 64 * 128)
    norms = 4 * 2 * 64 + 64
    wanted = (by_rows + by_columns + 2 * norms) / 2
    kept = by_rows / 4 + by_columns / 8 + norms / 4
    less = by_rows / 8 + by_columns / 8 + norms / 4
    assert grouping_reason("actor", model, apart) == (
        f"engines of actor are ranks {{0,2}}, {{1,3}}, which train {kept / wanted:.0%} of what "
        f"they generate with: groups of neighbours train {less / wanted:.0%}"
    )
    assert "no groups of ranks further apart" in grouping_reason("actor", model, neighbours)


def test_engines_stay_within_nodes_even_if_more_moves() -> None:
    model = trained("fsdp-8", 2)
    assert chosen(model, 2, devices_per_node=4).tensor_stride == 1
    assert chosen(model, 2, devices_per_node=8).tensor_stride == 4
    begins_late = TrainedModel(SHAPE, Mesh(pool="a", first_rank=1, data=4), 2, FSDP)
    assert chosen(begins_late, 2, devices_per_node=5).tensor_groups == ((1, 3), (2, 4))
    assert groupings(begins_late.mesh, 2, devices_per_node=4) == ()
    assert groupings(mesh_of("fsdp-8"), 3, devices_per_node=8) == ()


def test_ranks_that_do_not_train_keep_nothing() -> None:
    training, others = Mesh(pool="a", data=2), Mesh(pool="a", first_rank=2, data=2)
    apart = TrainedModel(SHAPE, training, 4, FSDP, generation_mesh=others)
    engines = chosen(apart, 2, devices_per_node=4)
    assert engines == Mesh(pool="a", first_rank=2, data=1, tensor=2)
    assert kept_bytes(apart, engines) == 0
    everywhere = Mesh(pool="a", data=4)
    there = kept_bytes(
        TrainedModel(SHAPE, training, 4, FSDP, generation_mesh=everywhere), everywhere
    )
    assert there == kept_bytes(TrainedModel(SHAPE, training, 4, FSDP), training) > 0


def test_roles_on_the_same_ranks_have_the_same_engines() -> None:
    """The larger one's, where they would have others alone."""
    small = DecoderShape(**{**vars(SHAPE), "num_layers": 2})
    models = {
        "actor": trained("1-4-2", 2),
        "teacher": TrainedModel(small, mesh_of("fsdp-8"), 2, FSDP),
    }
    alone = {role: chosen(model, 2).tensor_stride for role, model in models.items()}
    assert alone == {"actor": 2, "teacher": 4}
    together = engine_meshes(models, 2, 8)
    assert together["actor"] == together["teacher"]
    best = max(
        groupings(mesh_of("fsdp-8"), 2, 8),
        key=lambda mesh: sum(kept_bytes(model, mesh) for model in models.values()),
    )
    assert together["actor"] == best
    apart = {"actor": models["actor"], "other": TrainedModel(SHAPE, mesh_of("fsdp-8", 8), 2, FSDP)}
    assert {role: mesh.tensor_stride for role, mesh in engine_meshes(apart, 2, 8).items()} == {
        "actor": 2,
        "other": 4,
    }


@pytest.mark.parametrize("name", WELL_KNOWN_MODELS)
def test_every_parameter_is_known(name: str) -> None:
    shape = WELL_KNOWN_MODELS[name]
    elements = sum(w.number * w.tensor_part(0, 1, 1).num_elements for w in all_weights(shape))
    assert elements == shape.num_parameters


def test_many_groups_are_not_all_shown() -> None:
    mesh = Mesh(pool="a", data=8, tensor=2)
    assert describe_groups(mesh) == "{0,1}, {2,3}, {4,5}, {6,7}, ..."
