from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import GenerateOptions, ModelCall
from rlhf_runtime.calls.requests import CallRequest, InputBatch
from rlhf_runtime.controller.batch import (
    Batch,
    ColumnLocation,
    ColumnSegment,
    InputSources,
    ShardRef,
    as_batch,
)
from rlhf_runtime.controller.nodes import Node
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.dataplane.call_protocols import row_bounds
from rlhf_runtime.dataplane.partition import WINDOW_PARTS, BatchShape, Slice
from rlhf_runtime.dataplane.protocol import Coordinates

ROWS = (ShardRef("r0", range(0, 6)), ShardRef("r1", range(6, 12)))
HOST = (ShardRef("s0", range(0, 12)),)
GENERATED = as_batch(("tokens", "log_probs"), ROWS, BatchShape(3, 4))
REWARDS = as_batch(("scores",), HOST, BatchShape(3, 4))


def at(shards: tuple[ShardRef, ...], name: str) -> ColumnLocation:
    """Where a column of one call is."""
    return ColumnLocation((ColumnSegment(shards),), (name,))


def sent_parts(
    sources: InputSources, rows: range
) -> list[list[tuple[list[str], dict[str, str], int, int]]]:
    """For each part of each source the references, names, repeat and groups before it."""
    found, references = sources.for_rows(rows)
    remaining = iter(references)
    return [
        [
            (
                [next(remaining) for _ in range(part.num_shards)],
                dict(part.names),
                part.repeat,
                part.groups_before,
            )
            for part in source.segments
        ]
        for source in found
    ]


def sent(sources: InputSources, rows: range) -> list[tuple[list[str], dict[str, str], int]]:
    """For each source the references, names and repeat that are sent for some rows."""
    alone = [part for (part,) in sent_parts(sources, rows)]
    assert all(before == 0 for *_, before in alone)
    return [(references, names, repeat) for references, names, repeat, _ in alone]


def test_a_union_has_the_columns_of_both_and_the_rows_of_the_first() -> None:
    both = GENERATED | REWARDS
    assert both.column_names == {"tokens", "log_probs", "scores"}
    assert both.base == (ColumnSegment(ROWS),)
    assert both.columns["scores"] == REWARDS.columns["scores"]
    assert GENERATED.column_names == {"tokens", "log_probs"}


def test_where_both_have_a_column_the_others_counts() -> None:
    newer = as_batch(("log_probs",), HOST, BatchShape(3, 4))
    assert (GENERATED | newer).columns["log_probs"] == at(HOST, "log_probs")
    assert (newer | GENERATED).columns["log_probs"] == at(ROWS, "log_probs")


def test_a_shard_is_sent_once_however_many_of_its_columns_are_read() -> None:
    sources = (GENERATED | REWARDS).sources(("log_probs", "scores", "tokens"))
    assert sent(sources, range(12)) == [
        (["r0", "r1"], {"log_probs": "log_probs", "tokens": "tokens"}, 1),
        (["s0"], {"scores": "scores"}, 1),
    ]


def test_shards_without_a_row_that_is_needed_are_not_sent() -> None:
    sources = (GENERATED | REWARDS).sources(("scores", "tokens"))
    for rows, references in ((range(0, 6), ["r0"]), (range(6, 7), ["r1"]), (range(5, 7), None)):
        (found, _, _), (of_host, _, _) = sorted(sent(sources, rows), key=lambda each: each[0])
        assert found == (references or ["r0", "r1"]) and of_host == ["s0"]
    (none, _, _), _ = sorted(sent(sources, range(0)), key=lambda each: each[0])
    assert none == ["r0"], "who has no rows still learns of what kind the columns are"


def test_sources_that_are_not_read_are_not_sent() -> None:
    assert sent((GENERATED | REWARDS).sources(("scores",)), range(12)) == [
        (["s0"], {"scores": "scores"}, 1)
    ]


def test_a_call_that_reads_nothing_gets_the_rows_only() -> None:
    assert sent(GENERATED.sources(()), range(12)) == [(["r0", "r1"], {}, 1)]


def test_a_column_that_is_not_there_is_not_read() -> None:
    with pytest.raises(KeyError, match="values"):
        GENERATED.sources(("values",))


def test_columns_are_chosen_and_renamed_without_a_look_at_them() -> None:
    batch = (GENERATED | REWARDS).select("scores", "tokens").rename(scores="baseline")
    assert batch.column_names == {"baseline", "tokens"} and batch.base == (ColumnSegment(ROWS),)
    assert batch.columns["baseline"] == at(HOST, "scores")
    assert sent(batch.sources(("baseline",)), range(1)) == [(["s0"], {"baseline": "scores"}, 1)]


def test_a_broadcast_column_is_read_at_the_rows_of_the_other_batch() -> None:
    """Scores of one row for a prompt, beside four samples of it; and, of those, two each."""
    first, second = ShardRef("g0", range(0, 1)), ShardRef("g1", range(1, 3))
    greedy = as_batch(("scores",), (first, second), BatchShape(3))
    laid = GENERATED | greedy.rename(scores="baseline").broadcast(GENERATED)
    assert laid.base == (ColumnSegment(ROWS),) and laid.shape == BatchShape(3, 4)
    sources = laid.sources(("baseline", "tokens"))
    assert sent(sources, range(3, 6)) == [
        (["r0"], {"tokens": "tokens"}, 1),
        (["g0", "g1"], {"baseline": "scores"}, 4),
    ]
    assert sent(sources, range(0, 4))[1][0] == ["g0"]
    eight = as_batch((), (ShardRef("e0", range(24)),), BatchShape(3, 8))
    assert laid.broadcast(eight).columns["baseline"].segments[0].repeat == 8
    assert laid.broadcast(eight).columns["tokens"].segments[0].repeat == 2


def test_of_rows_put_one_after_the_other_only_the_calls_with_needed_rows_are_sent() -> None:
    """Two calls of three prompts with four samples each; the second's column has another name."""
    other = as_batch(("sampled",), (ShardRef("o0", range(0, 12)),), BatchShape(3, 4))
    both = GENERATED.select("tokens").concat(other.rename(sampled="tokens"))
    assert both.shape == BatchShape(6, 4) and both.column_names == {"tokens"}
    first, second = {"tokens": "tokens"}, {"tokens": "sampled"}
    sources = both.sources(("tokens",))
    assert sent_parts(sources, range(8, 12)) == [[(["r1"], first, 1, 0)]]
    assert sent_parts(sources, range(12, 13)) == [[(["o0"], second, 1, 3)]]
    assert sent_parts(sources, range(11, 13)) == [[(["r1"], first, 1, 0), (["o0"], second, 1, 3)]]
    assert sent_parts(sources, range(0)) == [[(["r0"], first, 1, 0)]]
    again = both.concat(both).sources(())
    assert [part[3] for part in sent_parts(again, range(48))[0]] == [0, 3, 6, 9]


def test_a_broadcast_column_is_found_behind_other_rows() -> None:
    greedy = as_batch(
        ("scores",), (ShardRef("g0", range(2)), ShardRef("g1", range(2, 3))), BatchShape(3)
    )
    laid = GENERATED.select("tokens") | greedy.broadcast(GENERATED)
    sources = laid.concat(laid).sources(("scores",))
    names = {"scores": "scores"}
    assert sent_parts(sources, range(20, 24)) == [[(["g1"], names, 4, 3)]]
    assert sent_parts(sources, range(11, 13)) == [[(["g1"], names, 4, 0), (["g0"], names, 4, 3)]]


class Listener:
    """A worker's handle that keeps what it is sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[tuple[CallRequest, tuple[tuple[str, int], ...]]] = []

    @property
    def run(self) -> "Listener":
        return self

    def options(self, num_returns: int) -> "Listener":
        assert num_returns == 2
        return self

    def remote(self, header: bytes, own: bytes, *shards: tuple[str, int]) -> tuple[str, object]:
        request = CallRequest.from_message(header, own)
        self.sent.append((request, shards))
        return "report", (request.call.id, self.name)


def order_of(call: ModelCall, batch: Batch, mini_batches: int = 1) -> CallRequest:
    given = (InputBatch(batch.shape),)
    return CallRequest(call, 1, GraphName.STEP, "one", given, mini_batches)


KINDS = (CallKind.INFER, CallKind.COMPUTE, CallKind.TRAIN)


@settings(deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from(KINDS),
    st.integers(1, 9),
)
def test_a_rank_is_sent_every_shard_that_may_hold_one_of_its_rows(
    prompts: int, samples: int, producers: int, consumers: int, kind: CallKind, parts: int
) -> None:
    shape, made = BatchShape(prompts, samples), Mesh(pool="a", data=producers)
    for producer in (CallKind.INFER, CallKind.COMPUTE):
        maker = ModelCall("maker", "actor", "maker", producer, (), ("tokens",))
        held = {
            rank: set(row_bounds(maker, shape, Coordinates.in_mesh(rank, made), range(prompts)))
            for rank in made.ranks
        }
        shards = tuple(
            ShardRef(rank, range(min(rows), max(rows) + 1) if rows else range(0))
            for rank, rows in held.items()
        )
        batch = as_batch(("tokens",), shards, shape)
        ranks = WorkerGroup([Listener(str(rank)) for rank in range(consumers)])
        call = ModelCall("call", "actor", "call", kind, ("tokens",), ())
        ranks.submit(order_of(call, batch, parts), [batch], Mesh(pool="a", data=consumers))
        for rank, worker in enumerate(ranks.workers):
            ((_, got),) = worker.sent
            at = Coordinates(rank, consumers)
            for groups in shape.mini_batches(parts):
                needed = set(row_bounds(call, shape, at, groups))
                missing = {r for r, rows in held.items() if rows & needed} - set(got)
                assert not missing, (rank, producer)


@pytest.mark.parametrize("size", [64, 256])
def test_what_a_rank_is_sent_does_not_grow_with_the_ranks(size: int) -> None:
    mesh, shape = Mesh(pool="a", data=size), BatchShape(8 * size)
    group = WorkerGroup([Listener(str(rank)) for rank in range(size)])
    generate = ModelCall(
        "generate", "actor", "generate", CallKind.GENERATE, ("prompt",), ("tokens",),
        options=GenerateOptions(8),
    )  # fmt: skip
    infer = ModelCall("infer", "actor", "infer", CallKind.INFER, ("tokens",), ("values",))
    train = ModelCall("train", "actor", "train", CallKind.TRAIN, ("tokens", "values"), ())
    prompts = as_batch(("prompt",), (ShardRef("p", range(8 * size)),), shape)
    _, batch, _ = group.submit(order_of(generate, prompts), [prompts], mesh)
    assert batch is not None and batch.shape == BatchShape(8 * size, 8)
    _, values, _ = group.submit(order_of(infer, batch), [batch], mesh)
    assert values is not None
    group.submit(order_of(train, batch, 4), [batch | values], mesh)
    counts = {request.call.id: len(got) for w in group.workers for request, got in w.sent}
    assert counts["generate"] == 1
    assert counts["infer"] == WINDOW_PARTS
    assert counts["train"] <= 4 * WINDOW_PARTS


def test_only_the_ranks_of_a_mesh_are_sent_a_call() -> None:
    group = WorkerGroup([Listener(str(rank)) for rank in range(4)])
    call = ModelCall("call", "actor", "call", CallKind.INFER, (), ("made",))
    batch = as_batch((), (ShardRef("p", range(6)),), BatchShape(6))
    mesh = Mesh(pool="a", first_rank=1, data=2)
    reports, made, _ = group.submit(order_of(call, batch), [batch], mesh)
    assert [len(worker.sent) for worker in group.workers] == [0, 1, 1, 0]
    assert len(reports) == 2 and isinstance(made, Batch)
    (held,) = made.base
    assert [shard.reference for shard in held.shards] == [("call", "1"), ("call", "2")]


SCORE = ModelCall("score", "reward", "score", CallKind.SCORE, ("tokens",), ("scores",))
GENERATE = ModelCall("generate", "actor", "generate", CallKind.GENERATE, ("prompt",), ("tokens",))


def scored_by(hosts: HostGroup, batch: Batch) -> list[str]:
    """The host of each part, in the order of the rows."""
    reports, made, _ = hosts.submit(order_of(SCORE, batch), [batch], None)
    assert made is not None and len(reports) == len(made.nonempty_shards("scores"))
    return [shard.reference[1] for shard in made.nonempty_shards("scores")]


def hosts_on(*nodes: Node) -> HostGroup:
    return HostGroup([Listener(f"host {node.number}") for node in nodes], nodes)


def test_a_part_is_scored_on_the_node_where_it_was_generated() -> None:
    """Four ranks on two nodes; the prompts of one batch are too few for all of them."""
    ranks = WorkerGroup(
        [Listener(str(rank)) for rank in range(4)], [Node("a", rank // 2) for rank in range(4)]
    )
    for num_prompts, expected in ((9, [0, 0, 1, 1]), (2, [0, 1]), (1, [1])):
        prompts = as_batch(
            ("prompt",), (ShardRef("p", range(num_prompts)),), BatchShape(num_prompts)
        )
        mesh = Mesh(pool="a", data=4)
        _, batch, _ = ranks.submit(order_of(GENERATE, prompts), [prompts], mesh)
        assert batch is not None
        hosts = hosts_on(Node("a", 0), Node("a", 1))
        assert scored_by(hosts, batch) == [f"host {number}" for number in expected]
        both = batch.concat(batch)
        assert scored_by(hosts, both) == [f"host {number}" for number in expected * 2]


def test_hosts_take_turns_where_nobody_knows_where_a_part_was_generated() -> None:
    """As when another pool than the hosts' generates; a further call goes on with the next."""
    shards = [ShardRef(name, range(n, n + 1), Node("b", 0)) for n, name in enumerate("xyz")]
    batch = as_batch(("tokens",), shards, BatchShape(3))
    hosts = hosts_on(Node("a", 0), Node("a", 1))
    assert scored_by(hosts, batch) == ["host 0", "host 1", "host 0"]
    unknown = as_batch(("tokens",), [ShardRef("x", range(3))], BatchShape(3))
    assert scored_by(hosts, unknown) == ["host 1"]


def test_a_batch_without_rows_is_scored_once() -> None:
    nothing = as_batch(("tokens",), [ShardRef("x", range(0))], BatchShape(0))
    hosts = hosts_on(Node("a", 0))
    hosts.submit(order_of(SCORE, nothing), [nothing], None)
    ((request, shards),) = hosts.workers[0].sent
    assert (request.batch_slice, shards) == (Slice(0, 1), ("x",))


def test_the_choice_of_shards_does_not_depend_on_chance() -> None:
    numbers = list(range(100))
    Random(3).shuffle(numbers)
    shards = tuple(ShardRef(n, range(3 * i, 3 * i + 3)) for i, n in enumerate(numbers))
    sources = as_batch(("a",), shards, BatchShape(300)).sources(("a",))
    assert sources.for_rows(range(31, 40))[1] == numbers[10:14]


def test_fields_of_the_data_that_no_call_reads_are_not_there_to_be_selected() -> None:
    assert GENERATED.select("tokens", "never_read").column_names == {"tokens"}
