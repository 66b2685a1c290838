"""Graphs that nobody traced are refused with what is wrong; whatever they say, nothing crashes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from rlhf_api.spec.algorithm_graph import AlgorithmGraph
from rlhf_flow.document.graph_document import read_graph
from rlhf_flow.errors import InvalidGraph

from .hostile_graphs import PPO, Document, broken

Change = Callable[[Document], object]
HOSTILE = 1000


def call(document: Document, name: str) -> Document:
    found: Document = next(each for each in document["calls"] if each["id"] == name)
    return found


def changed(change: Change) -> AlgorithmGraph:
    document = copy.deepcopy(PPO)
    change(document)
    return AlgorithmGraph.model_validate(document)


def swapped(document: Document) -> None:
    calls = document["calls"]
    calls[0], calls[1] = calls[1], calls[0]


def circular(document: Document) -> None:
    """The policy would train on what the critic's training gives it, and the other way round."""
    call(document, "critic.train")["sources"].append({"source": "actor.train", "fields": ["x"]})


CASES: dict[str, tuple[Change, str]] = {
    "an unknown role": (
        lambda d: d["roles"].pop(2),
        "critic.values is of an unknown role: got critic, allowed actor, reward;",
    ),
    "a role twice": (
        lambda d: d["roles"].append(d["roles"][0]),
        "a role that is there twice: got actor",
    ),
    "a reserved name": (
        lambda d: d["roles"].append({"name": "compute", "kind": "LanguageModel"}),
        "a role of a name that none may have: got compute",
    ),
    "a call twice": (
        lambda d: d["calls"].append(d["calls"][0]),
        "a call that is there twice: got actor.generate",
    ),
    "another method": (
        lambda d: call(d, "critic.values").update(method="log_probs"),
        "critic.values is what critic cannot do: got log_probs, allowed values, scores, train",
    ),
    "no method": (
        lambda d: call(d, "compute").update(method="guess"),
        "compute is of no role: got guess, allowed compute or save",
    ),
    "calls before what they read": (
        swapped,
        "reward.score reads from what does not come before it: got actor.generate",
    ),
    "a circle": (
        circular,
        "critic.train reads from what does not come before it: got actor.train",
    ),
    "a dangling source": (
        lambda d: call(d, "compute")["sources"][0].update(source="nobody"),
        "compute reads from what does not come before it: got nobody, allowed prompts, pretrain",
    ),
    "a field that nobody wrote": (
        lambda d: call(d, "reward.score")["sources"][0].update(fields=["wishes"]),
        "reward.score reads what actor.generate does not write: got wishes",
    ),
    "reads from nowhere": (
        lambda d: call(d, "critic.values").update(sources=[]),
        "critic.values reads what nothing writes: got prompt_tokens, response_tokens",
    ),
    "too few reads": (
        lambda d: call(d, "actor.train").update(reads=["prompt_tokens"]),
        "actor.train does not read what it needs: got none, allowed advantages",
    ),
    "other writes": (
        lambda d: call(d, "compute").update(writes=["wishes"]),
        "compute writes other columns than its method: got .*wishes",
    ),
    "no rows": (
        lambda d: call(d, "actor.train").update(rows={"expected": 0, "most": 0}),
        "actor.train works on no rows: got 0 expected and 0 at most",
    ),
    "more rows than there may be": (
        lambda d: call(d, "actor.train").update(rows={"expected": 9, "most": 4}),
        "actor.train expects more rows than it may have: got 9 expected and 4 at most",
    ),
    "parts of samples": (
        lambda d: call(d, "actor.generate").update(rows={"expected": 3, "most": 3}),
        "actor.generate makes parts of a prompt's samples",
    ),
    "responses of nobody": (
        lambda d: call(d, "critic.values").update(responses=["reward.score"]),
        "what samples none before it: got reward.score, allowed actor.generate",
    ),
    "a loss of another kind of role": (
        lambda d: call(d, "actor.train").update(
            reads=call(d, "critic.train")["reads"],
            sources=call(d, "critic.train")["sources"],
            train=call(d, "critic.train")["train"],
        ),
        "actor.train trains by a loss that does not fit: got ValueLoss, allowed ClippedLoss, ",
    ),
    "training without a loss": (
        lambda d: call(d, "actor.train").pop("train"),
        "or lacks its own: got nothing, allowed train",
    ),
    "a loss of a call that trains nothing": (
        lambda d: call(d, "critic.values").update(train=call(d, "critic.train")["train"]),
        "has options of another method.*: got train, allowed nothing",
    ),
    "a call in no region": (
        lambda d: call(d, "actor.train").update(id="every-2/actor.train"),
        "a call in a region that is not there: got every-2/actor.train",
    ),
    "a region that runs more than always": (
        lambda d: d.update(regions=[{"id": "every-2", "kind": "Every", "expectedCount": 2.0}]),
        "every-2 runs impossibly often: got expectedCount 2, allowed at most 1",
    ),
    "weights of another kind of role": (
        lambda d: d["calls"].append(
            {
                **{"id": "actor.copy_weights_from", "role": "actor"},
                **{"method": "copy_weights_from", "weightsOf": "critic"},
                "rows": {"expected": 0, "most": 0},
            }
        ),
        "actor.copy_weights_from copies no role's weights: got critic",
    ),
}


@pytest.mark.parametrize(("change", "said"), CASES.values(), ids=CASES)
def test_what_no_step_does_is_refused(change: Change, said: str) -> None:
    with pytest.raises(InvalidGraph, match=said) as refused:
        read_graph(changed(change))
    assert refused.value.location == ("spec", "algorithm", "graph")
    assert "rlhf fill FILE" in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=2),
        lambda d: call(d, "actor.train").update(rows={"expected": 1, "most": 2**40}),
        lambda d: d["calls"].extend([d["calls"][0]] * 400),
        lambda d: d.update(wishes=[]),
        lambda d: call(d, "compute")["compute"][0]["settings"].update(scores=["a"]),
    ],
    ids=["another version", "absurd rows", "too many calls", "an unknown field", "a list"],
)
def test_what_has_another_form_is_refused_by_the_contract(change: Change) -> None:
    with pytest.raises(ValidationError):
        changed(change)


def test_no_broken_graph_does_more_than_be_refused() -> None:
    chance = random.Random(20)
    read = refused = 0
    for _ in range(HOSTILE):
        try:
            graph = read_graph(AlgorithmGraph.model_validate(broken(chance)))
        except (ValidationError, InvalidGraph) as error:
            refused += 1
            assert str(error)
        else:
            read += 1
            assert len(graph.topological_order()) == len(graph.calls), "nothing waits for itself"
    assert read > HOSTILE / 50 and refused > HOSTILE / 2, "both were tried"
