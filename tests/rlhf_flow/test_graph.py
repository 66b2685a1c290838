"""Order and version edges of graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_flow import LanguageModel
from rlhf_flow.errors import FlowError
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.trace.graph import DataEdge, Graph, version_edges


def call(name: str, kind: CallKind = CallKind.INFER, role: str = "actor") -> ModelCall:
    return ModelCall(name, role, name, kind, (), ())


def graph(names: str, edges: list[tuple[str, str]]) -> Graph:
    return Graph(
        roles={"actor": LanguageModel},
        inputs=(),
        calls=tuple(call(name) for name in names),
        data_edges=tuple(DataEdge(source, target, ("x",)) for source, target in edges),
        version_edges=(),
    )


def test_order_follows_edges_and_then_the_program() -> None:
    ordered = graph("abcd", [("d", "a"), ("prompts", "b")]).topological_order()
    assert [c.id for c in ordered] == ["b", "c", "d", "a"]


def test_a_circle_is_refused() -> None:
    with pytest.raises(FlowError, match="circle: got a, b"):
        graph("abc", [("a", "b"), ("b", "a")]).topological_order()


def test_an_edge_from_nowhere_is_refused() -> None:
    with pytest.raises(FlowError, match="does not have: got z"):
        graph("ab", [("z", "a")]).topological_order()


def test_an_unknown_call_is_refused() -> None:
    with pytest.raises(FlowError, match="no such call in the graph: got z, allowed a, b"):
        graph("ab", []).call("z")


def test_scores_of_responses_read_nothing_else_and_run_as_often() -> None:
    names = ("generate", "generate#2", "score", "mixed", "filtered", "every-2/score", "log_probs")
    edges = [
        *(("generate", name) for name in names[2:] if name != "filtered"),
        *(("generate#2", "mixed"), ("log_probs", "filtered"), ("prompts", "generate")),
    ]
    scoring = {"score", "mixed", "filtered", "every-2/score"}
    calls = tuple(
        call(name, CallKind.SCORE if name in scoring else CallKind.INFER) for name in names
    )
    made = replace(graph("", edges), calls=calls)
    generate, other, *_ = calls
    assert [one.id for one in made.scores_of_responses(generate)] == ["score"]
    assert made.scores_of_responses(other) == ()
    repeated = replace(generate, id="every-2/generate")
    in_region = replace(made, data_edges=(DataEdge(repeated.id, "every-2/score", ("x",)),))
    assert [one.id for one in in_region.scores_of_responses(repeated)] == ["every-2/score"]


def test_roles_that_are_never_trained_have_no_version_edges() -> None:
    assert version_edges([call("a"), call("b")], {"actor": LanguageModel}) == ()


@given(st.lists(st.booleans(), min_size=1, max_size=7))
def test_version_edges_order_every_pair_of_which_one_trains(trains: list[bool]) -> None:
    """Oracle: over two steps, reachability by the edges is the order around every training."""
    kinds = [CallKind.TRAIN if train else CallKind.INFER for train in trains]
    calls = [call(f"c{index}", kind) for index, kind in enumerate(kinds)]
    edges = version_edges(calls, {"actor": LanguageModel})
    count = len(calls)
    follows = {(step, i): set[tuple[int, int]]() for step in (0, 1) for i in range(count)}
    for edge in edges:
        source, target = int(edge.source[1:]), int(edge.target[1:])
        for step in (0, 1):
            if step + edge.iterations <= 1:
                follows[step, source].add((step + edge.iterations, target))

    def reaches(start: tuple[int, int], goal: tuple[int, int]) -> bool:
        return goal in follows[start] or any(reaches(mid, goal) for mid in follows[start])

    nodes = sorted(follows)
    for position, first in enumerate(nodes):
        for second in nodes[position + 1 :]:
            between = [trains[i] for s, i in nodes[position : nodes.index(second) + 1]]
            assert reaches(first, second) == any(between)
