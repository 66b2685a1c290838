"""Draws a graph: as plain text, and as mermaid for documents."""

from __future__ import annotations

from rlhf_flow.step.calls import ComputeOptions, ModelCall, SaveOptions, operation_name
from rlhf_flow.step.operations import Scope
from rlhf_flow.trace.graph import PRETRAINING, PROMPTS, Graph

_SCOPES = {
    Scope.ROW: "one row at a time",
    Scope.GROUP: "the rows of a prompt",
    Scope.BATCH: "the whole batch",
}


def draw_text(graph: Graph) -> str:
    """A graph as text: a line per call; below it its operations with their rows, and its sources.

    Calls with the same number are independent of each other. `~>` passes a trained role's weights
    to the next step.
    """
    levels = _levels(graph)
    width = max(len(call.id) for call in graph.calls)
    lines = [f"0  {name.ljust(width)}  -> {', '.join(columns)}" for name, columns in _data(graph)]
    for call in sorted(graph.calls, key=lambda call: levels[call.id]):
        count = graph.expected_count(call.id)
        often = "" if count == 1 else f"  x {count:g}"
        lines.append(f"{levels[call.id]}  {call.id.ljust(width)}  {_effect(call)}{often}")
        if isinstance(call.options, ComputeOptions):
            names = ", ".join(map(operation_name, call.options.operations))
            cut = f", cut by {call.protocol}" if call.protocol else ""
            lines.append(f"     {names}: over {_SCOPES[call.options.scope]}{cut}")
        lines += [
            f"     <- {edge.source}: {', '.join(edge.columns)}"
            for edge in graph.data_edges
            if edge.target == call.id
        ]
    lines += [
        f"~> {edge.source} gives {edge.role}'s weights to the next step's {edge.target}"
        for edge in graph.version_edges
        if edge.iterations == 1
    ]
    return "\n".join(lines)


def draw_mermaid(graph: Graph) -> str:
    """A graph as a mermaid flowchart: solid arrows are columns, dotted ones weights."""
    # Calls get short names: `#` and `/` of their ids are syntax in mermaid.
    data = {name: name for name, _ in _data(graph)}
    names = data | {call.id: f"c{i}" for i, call in enumerate(graph.calls)}
    lines = ["flowchart TD", *(f"  {name}([{name}])" for name in data)]
    lines += [f'  {names[call.id]}["{call.id}"]' for call in graph.calls]
    lines += [
        f'  {names[edge.source]} -->|"{", ".join(edge.columns)}"| {names[edge.target]}'
        for edge in graph.data_edges
    ]
    lines += [
        f'  {names[edge.source]} -.->|"{edge.role}{", next step" if edge.iterations else ""}"| '
        f"{names[edge.target]}"
        for edge in graph.version_edges
    ]
    return "\n".join(lines)


def _effect(call: ModelCall) -> str:
    if call.writes:
        return f"-> {', '.join(call.writes)}"
    if isinstance(call.options, SaveOptions):
        return f"keeps it as {call.options.name}"
    return f"takes {call.copied_role}'s weights" if call.copied_role else "trains"


def _data(graph: Graph) -> list[tuple[str, tuple[str, ...]]]:
    """The data of a step with the columns that it reads, prompts first."""
    # Even unread prompts are drawn: every step gets them.
    inputs = graph.inputs
    others = [(PRETRAINING, inputs.pretraining)] if inputs.pretraining else []
    return [(PROMPTS, inputs.prompts), *others]


def _levels(graph: Graph) -> dict[str, int]:
    """Length of the longest chain of calls before each, counted from 1."""
    levels: dict[str, int] = {}
    for call in graph.topological_order():
        before = graph.predecessors(call.id)
        levels[call.id] = 1 + max((levels[call_id] for call_id in before), default=0)
    return levels
