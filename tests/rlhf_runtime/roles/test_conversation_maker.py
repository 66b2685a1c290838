"""Conversations of a generate call: dialogues of rows, connections, capacity, columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_flow.step.columns import PROMPT_ID, PROMPT_TOKENS, RECORD, SAMPLE_INDEX
from rlhf_runtime.calls.episodes import Begin, EpisodeId
from rlhf_runtime.conversations.interfaces import ConversationSettings, EnvironmentAccess
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, pack, pack_texts
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription, ToolFacts
from rlhf_runtime.hooks import noop
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.roles.conversations import ConversationMaker, ConversationRows
from rlhf_runtime.roles.sequence_migration import Prompts

from ..conversations.scripted import VERSION, LateClient, ScriptedDialogue
from ..data.tool_calls.conversations import schema
from ..engines.scripted_engine import ScriptedEngine

# The scripted client has an observation for rows 4 and 8, which are written by their dialogues.
ROWS, PROMPT_IDS, SAMPLES = [4, 5, 8], [20, 20, 21], [0, 1, 0]
NAMES = {4: "a", 5: "a", 8: "b"}
DESCRIPTION = EnvironmentDescription(
    {name: ClassFacts({"add": ToolFacts(schema("add"), True)}) for name in ("a", "b")}
)


class Dialogue(ScriptedDialogue):
    """Writes every prompt as one token."""

    def __init__(self, token: int) -> None:
        self._token = token

    def prompt_tokens(self, text: str) -> NDArray[np.int32]:
        return np.array([self._token], dtype=np.int32)


def spec_of(**rollout: Any) -> RLHFJobSpec:
    return RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "data": {"train": {"path": "rows.jsonl"}},
            "rewards": [{"function": {"entrypoint": "rewards:score"}}],
            "rollout": {
                "samplesPerPrompt": 2,
                "maxPromptTokens": 12,
                "maxResponseTokens": 30,
                **rollout,
            },
            "schedule": {"steps": 1, "promptsPerStep": 2},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama_folder(0, tmp_path)


def prompts() -> Prompts:
    records = [
        json.dumps(
            {
                "prompt": "p",
                "record": {"environment": NAMES[row]},
                "marked_prompt": "p\ue000observation\ue000",
            }
        )
        for row in ROWS
    ]
    one_each = np.ones(len(ROWS), dtype=np.int32)
    return Prompts(
        ShardIndex(np.array(ROWS), np.array(PROMPT_IDS), one_each),
        {
            RECORD: pack_texts(records),
            PROMPT_TOKENS: pack([np.array([row], dtype=np.int32) for row in ROWS], np.int32),
            PROMPT_ID: Column(np.array(PROMPT_IDS)),
            SAMPLE_INDEX: Column(np.array(SAMPLES)),
        },
    )


def start(folder: Path, access: EnvironmentAccess, at: Coordinates) -> ConversationRows:
    environment = spec_of(environment={"classes": {"a": "m:A", "b": "m:B"}}).rollout.environment
    assert environment is not None
    maker = ConversationMaker(
        TextTokenizer(folder),
        access,
        {"a": Dialogue(11), "b": Dialogue(12)},  # type: ignore[dict-item]  # has what is called
        ConversationSettings(environment, 12, 30, 42, 100),
        noop,
    )
    engine = ScriptedEngine()
    engine.publish(VERSION)

    def sampling(rows: Sequence[int], turns: Sequence[int]) -> Sampling:
        return Sampling(1.0, [10 * row + turn for row, turn in zip(rows, turns, strict=True)])

    inputs: Any = SimpleNamespace(
        at=at, graph=GraphName.STEP, step=3, repetition=1, round=2, call=SimpleNamespace(id="g")
    )
    batch = BatchGenerator(engine).new_batch(VERSION)
    return maker.start(inputs, prompts(), engine, batch, sampling, records_kept_tokens=False)


def test_rows_become_conversations_of_their_environments(folder: Path) -> None:
    client = LateClient(Random(0))
    rows = start(folder, EnvironmentAccess(DESCRIPTION, lambda: client), Coordinates(0, 1))
    rows.run(noop)
    assert rows.has_ended().all()
    columns = rows.columns()
    tokens = [prompt.tolist() for prompt in columns[PROMPT_TOKENS].runs()]
    assert tokens == [[11], [5], [12]], "row 5 has no observation, so its prompt stays"
    begins = [one for one in client.asked if isinstance(one.action, Begin)]
    assert [one.episode for one in begins] == [
        EpisodeId(GraphName.STEP, 3, 1, "g", 2, row) for row in ROWS
    ]
    notes = [(b.action.prompt_id, b.action.sample) for b in begins if isinstance(b.action, Begin)]
    assert notes == list(zip(PROMPT_IDS, SAMPLES, strict=True))
    responses = rows.generated()
    assert all(0 < len(tokens) <= 30 for tokens in responses.tokens.runs())


@pytest.mark.parametrize(
    ("at", "connects"),
    [
        (Coordinates(1, 2), True),
        (Coordinates(0, 1, tensor=1, tensor_size=2), False),
        (Coordinates(0, 1, pipeline=1, pipeline_size=2), False),
    ],
)
def test_the_first_rank_of_an_engine_alone_connects(
    folder: Path, at: Coordinates, connects: bool
) -> None:
    clients = list[LateClient]()

    def connect() -> LateClient:
        clients.append(LateClient(Random(0)))
        return clients[-1]

    start(folder, EnvironmentAccess(DESCRIPTION, connect), at)
    assert len(clients) == connects


def context_of(spec: RLHFJobSpec, folder: Path, rank: int) -> Any:
    """A rank of three engines, of which two are on the first node."""
    mesh = SimpleNamespace(pool="all", tensor_groups=((0,), (1,), (2,)))
    return SimpleNamespace(
        job=SimpleNamespace(spec=spec),
        environment=EnvironmentAccess(DESCRIPTION, lambda: LateClient(Random(0))),
        folder=folder,
        role="actor",
        tick=noop,
        world=SimpleNamespace(rank=rank),
        plan=SimpleNamespace(
            generation=lambda role: SimpleNamespace(mesh=mesh),
            pool=lambda name: SimpleNamespace(devices_per_node=2),
        ),
    )


@pytest.mark.parametrize(
    ("rank", "concurrency", "capacity"), [(0, 9, 4), (1, 9, 4), (2, 9, 9), (0, 1, 1)]
)
def test_engines_of_a_node_share_its_conversations(
    folder: Path, rank: int, concurrency: int, capacity: int
) -> None:
    environment = {"classes": {"a": "m:A", "b": "m:B"}, "concurrency": concurrency}
    context = context_of(spec_of(environment=environment), folder, rank)
    maker = ConversationMaker.from_context(context, TextTokenizer(folder))
    assert maker is not None and maker.dialogues.keys() == {"a", "b"}
    settings = maker.settings
    assert (settings.capacity, settings.max_prompt_tokens, settings.max_tokens) == (
        *(capacity, 12),
        30,
    )
    assert settings.max_sequence_tokens == 42


def test_a_job_without_an_environment_has_no_conversations(folder: Path) -> None:
    context = context_of(spec_of(), folder, 0)
    assert ConversationMaker.from_context(context, TextTokenizer(folder)) is None
