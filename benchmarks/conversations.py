"""bench-conversations: conversations of several turns on one engine, without Ray.

A Llama with random weights, which ends a turn at one of many end tokens. Three measurements:
turns:     conversations whose tools answer at once; responses of one turn with as many sampled
           tokens
Fastest:   tools that take a while, in real processes; the larger of generation alone and the
           tools' time divided by the conversations that are live at once
Exact:     the same in the exact order
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from command_line import make_parser, parse
from numpy.typing import NDArray
from outcome import note, paired_ratio, print_json, print_table, verdict
from rank_load import make_load, rank_load, write_random_llama

from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_api.spec.conversation import ConversationOrder, EnvironmentSpec
from rlhf_api.spec.resources import Device
from rlhf_runtime.calls.episodes import Act, Begin, EpisodeId, EpisodeReply, EpisodeRequest
from rlhf_runtime.conversations.conversation import Conversation
from rlhf_runtime.conversations.conversations import Conversations
from rlhf_runtime.conversations.interfaces import (
    ConversationSettings,
    ConversationTools,
    EpisodeClient,
)
from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.engines.world import World, serve_store
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.results import Acted, Begun, Ended, EpisodeKey
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.hooks import noop
from rlhf_runtime.journal.answers import CallScope
from rlhf_runtime.journal.folder import Position
from rlhf_runtime.workers.libraries import import_libraries

TURNS_TARGET, TOOLS_TARGET = 1.25, 1.25
ANSWER_TOKENS = 8
VERSION = 1
MESH = Mesh(pool="rank", data=1)
SCOPE = CallScope(Position(1), 0, "generate", 0)


class EveryTurnCalls:
    """A dialogue in which every turn has one call."""

    def prompt_tokens(self, text: str) -> NDArray[np.int32]:
        raise AssertionError("the environment observes nothing")

    def calls(self, turn: NDArray[np.int32]) -> Sequence[ToolCall | MalformedCall]:
        return [ToolCall("wait", {"number": len(turn)})]

    def answer_tokens(
        self,
        turn: NDArray[np.int32],
        calls: Sequence[ToolCall | MalformedCall],
        answers: Sequence[str],
    ) -> NDArray[np.int32]:
        return np.full(ANSWER_TOKENS, 7, dtype=np.int32)

    def harmless(self, text: str) -> str:
        return text


class InstantClient:
    """An environment that answers at once, in this process."""

    def __init__(self) -> None:
        self._replies: dict[int, EpisodeReply] = {}
        self._num_sent = 0

    def send(self, request: EpisodeRequest) -> int:
        self._num_sent += 1
        match request.action:
            case Begin():
                self._replies[self._num_sent] = Begun()
            case Act():
                self._replies[self._num_sent] = Acted(("1",))
            case _:
                self._replies[self._num_sent] = Ended()
        return self._num_sent

    def take(
        self, tickets: Sequence[int], num_needed: int, seconds: float
    ) -> dict[int, EpisodeReply]:
        return {ticket: self._replies.pop(ticket) for ticket in tickets}

    def complete(self, episode: EpisodeId) -> RecordCounts:
        return RecordCounts()


class ThreadClient:
    """Real environments, served by a thread of this process."""

    def __init__(self, episodes: Episodes, loop: asyncio.AbstractEventLoop) -> None:
        self._episodes, self._loop = episodes, loop
        self._futures: dict[int, Future[EpisodeReply]] = {}
        self._num_sent = 0

    def send(self, request: EpisodeRequest) -> int:
        self._num_sent += 1
        asked = asyncio.run_coroutine_threadsafe(self._ask(request), self._loop)
        self._futures[self._num_sent] = asked
        return self._num_sent

    async def _ask(self, request: EpisodeRequest) -> EpisodeReply:
        key = EpisodeKey(SCOPE, request.episode.row)
        match request.action:
            case Begin():
                return await self._episodes.begin(key, {})
            case Act(turn, calls):
                return await self._episodes.act(key, turn, calls)
            case end:
                return await self._episodes.end(key, end.reason.value)

    def take(
        self, tickets: Sequence[int], num_needed: int, seconds: float
    ) -> dict[int, EpisodeReply]:
        deadline = time.monotonic() + seconds
        while True:
            done = [ticket for ticket in tickets if self._futures[ticket].done()]
            rest = deadline - time.monotonic()
            if len(done) >= num_needed or rest <= 0:
                return {ticket: self._futures.pop(ticket).result() for ticket in done}
            waiting = [self._futures[ticket] for ticket in tickets if ticket not in done]
            wait(waiting, rest, FIRST_COMPLETED)

    def complete(self, episode: EpisodeId) -> RecordCounts:
        return RecordCounts()


class Bench:
    """One engine, and conversations on it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        from rlhf_runtime.engines.vllm.engine import VllmEngine

        self.options = options
        # All turns and answers, with room for long turns.
        longest = 4 * options.turns * (options.tokens + ANSWER_TOKENS)
        self.load = make_load(
            folder, "float32", argparse.Namespace(**vars(options), response=longest)
        )
        self.prompts = rank_load(self.load)
        world = World.join(0, 1, serve_store("127.0.0.1", 1, 60), torch.device("cpu"), 600)
        ends = range(10, 10 + self.load.vocabulary // options.tokens)
        self.settings = EngineSettings(
            folder=folder,
            dtype="float32",
            groups=MESH.tensor_groups,
            kv_cache_bytes=self.load.cache_bytes,
            memory_bytes=2 * self.load.cache_bytes,
            max_sequence_tokens=options.prompt + longest,
            max_concurrent_sequences=options.rows,
            block_tokens=32,
            stop_token_ids=tuple(ends),
            world=f"bench-conversations-{os.getpid()}",
            share_prompts=True,
        )
        self.engine = VllmEngine(self.settings, world)
        self.engine.publish(VERSION)
        self.generator = BatchGenerator(self.engine)

    def converse(self, client: EpisodeClient, order: ConversationOrder) -> list[Conversation]:
        """Run conversations of all prompts."""
        environment = EnvironmentSpec.model_validate(
            {
                "tools": ["unused:unused"],
                "order": order.value,
                "limits": {"turns": self.options.turns},
                "delaySteps": self.options.delay,
            }
        )
        longest = self.load.response
        settings = ConversationSettings(
            environment,
            self.options.prompt,
            longest,
            self.options.prompt + longest,
            self.options.rows if isinstance(client, InstantClient) else self.options.concurrency,
        )
        tools = ConversationTools(lambda _: "", str, client, noop)
        dialogue = EveryTurnCalls()
        conversations = [
            Conversation(row, dialogue, '{"record": {}}', prompt.astype(np.int32), longest)
            for row, prompt in enumerate(self.prompts.runs())
        ]
        episode = partial(EpisodeId, GraphName.STEP, 1, 0, "generate", 0)
        batch = self.generator.new_batch(VERSION)
        Conversations(settings, tools, self.engine, batch, _sampling, episode).run(
            conversations, noop
        )
        return conversations

    def one_turn(self, lengths: Sequence[int]) -> None:
        """Generate responses of one turn.

        Args:
            lengths: tokens of each response.
        """
        self.engine._settings = replace(self.settings, stop_token_ids=())
        batch = self.generator.new_batch(VERSION)
        batch.add(self.prompts, Sampling(1.0, range(len(lengths))), lengths)
        batch.run()
        self.engine._settings = self.settings

    def with_tools(self, seconds: float, order: ConversationOrder) -> tuple[float, int]:
        """Return the seconds of conversations with slow tools, and the number of calls."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        settings = EnvironmentSettings(
            {"": "sleeping_tool:Sleeper"},
            {"seconds": seconds},
            concurrency=self.options.concurrency,
            **{"call_seconds": 60, "turn_seconds": 60, "episode_seconds": 600},
            parallel_calls=1,
        )
        episodes = Episodes(settings, (str(Path(__file__).resolve().parent),))
        try:
            asyncio.run_coroutine_threadsafe(episodes.start(), loop).result()
            begin = time.perf_counter()
            ended = self.converse(ThreadClient(episodes, loop), order)
            taken = time.perf_counter() - begin
        finally:
            asyncio.run_coroutine_threadsafe(episodes.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        return taken, sum(len(turn.answers) for one in ended for turn in one.turns)


def _sampling(rows: Sequence[int], turns: Sequence[int]) -> Sampling:
    return Sampling(1.0, [1000 * row + turn for row, turn in zip(rows, turns, strict=True)])


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=500, help="conversations")
    parser.add_argument("--turns", type=int, default=4, help="turns of each")
    parser.add_argument("--tokens", type=int, default=32, help="mean of a turn")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--concurrency", type=int, default=128, help="live ones with tools")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a call")
    parser.add_argument("--delay", type=int, default=16, help="delaySteps of the exact order")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    options = parse(
        parser,
        **{"rows": 4, "turns": 2, "tokens": 4, "concurrency": 4, "seconds": 0.01},
        **{"rounds": 1, "hidden": 64, "layers": 1},
    )
    import_libraries(Device.CPU)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_random_llama(model, options.hidden, options.layers, "float32", "cpu")
        bench = Bench(model, options)
        measure(bench, options)


def measure(bench: Bench, options: argparse.Namespace) -> None:
    """Measure in turns, so that a slow minute slows both sides of a round."""
    several, single = [], []
    for number in range(options.rounds + 1):
        begin = time.perf_counter()
        ended = bench.converse(InstantClient(), ConversationOrder.FASTEST)
        middle = time.perf_counter()
        bench.one_turn([int(one.mask.sum()) for one in ended])
        if number:  # the first round allocates
            several.append(middle - begin)
            single.append(time.perf_counter() - middle)
        note(
            f"round {number}: {middle - begin:.2f} s, one turn {time.perf_counter() - middle:.2f} s"
        )
    ratios = {"turns": paired_ratio(several, single)}
    rows = [("turns", float(np.median(several)), float(np.median(single)), ratios["turns"])]
    for order in ConversationOrder:
        taken, num_calls = bench.with_tools(options.seconds, order)
        baseline = max(float(np.median(several)), num_calls * options.seconds / options.concurrency)
        ratios[order.value] = taken / baseline
        rows.append((order.value, taken, baseline, taken / baseline))
    print_table(("seconds", "ours", "baseline", "ratio"), rows)
    smallest = options.smallest
    print(verdict("turns", ratios["turns"], TURNS_TARGET, smallest=smallest))
    fastest = ConversationOrder.FASTEST.value
    print(verdict("tools, Fastest", ratios[fastest], TOOLS_TARGET, smallest=smallest))
    print_json("conversations", smallest=smallest, ratio=ratios, rows=options.rows)


if __name__ == "__main__":
    main()
