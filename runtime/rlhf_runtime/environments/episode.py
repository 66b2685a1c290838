"""One conversation, as its environment sees it: actions and their records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rlhf_runtime.environments import frames
from rlhf_runtime.environments.limits import ActionFailed, TimedRequests
from rlhf_runtime.environments.process_handle import (
    CallAnswer,
    OnAnswer,
    ProcessEnded,
    ProcessHandle,
)
from rlhf_runtime.environments.rebuild import Past, PastTurn, Rebuild
from rlhf_runtime.environments.records import PARTY, EpisodeRecords, Record, digest
from rlhf_runtime.environments.results import (
    Acted,
    Begun,
    Ended,
    EpisodeFailure,
    EpisodeKey,
    FailureKind,
)
from rlhf_runtime.environments.returned_values import (
    BadValue,
    error_text,
    observation_text,
    reward_value,
    shorten,
    turn_reward_value,
)
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentSettings
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall, check_calls
from rlhf_runtime.environments.tool_source import ToolSource

Calls = Sequence[ToolCall | MalformedCall]
NO_NOTES: Record = MappingProxyType({})


@dataclass(frozen=True)
class EpisodeContext:
    """Parts of the job that all conversations share.

    start_process: forks a process for a conversation.
    sources: tools that do not run there, by name.
    """

    settings: EnvironmentSettings
    records: EpisodeRecords
    start_process: Callable[[], Awaitable[ProcessHandle]]
    sources: Mapping[str, ToolSource] = field(default_factory=dict)


class Episode:
    """A conversation's episode, from `begin` to `end`."""

    def __init__(
        self,
        key: EpisodeKey,
        row: Mapping[str, Any],
        environment: str,
        facts: ClassFacts,
        shared: EpisodeContext,
    ) -> None:
        """
        Args:
            key: of the conversation.
            row: of the data.
            environment: name of the row's environment.
            facts: about that environment.
            shared: parts of the job.
        """
        self._key = key
        self._row = row
        self._environment = environment
        self._facts = facts
        self._shared = shared
        self._requests = TimedRequests(shared.settings)
        self._process: ProcessHandle | None = None
        self._failure: EpisodeFailure | None = None
        self._begun: Begun | None = None
        self._turns: list[PastTurn] = []
        self._snapshot: Any = None
        # Digest of all that has happened so far.
        self._past = ""

    async def begin(self, notes: Record = NO_NOTES) -> Begun:
        """Make the object and call `reset`.

        Args:
            notes: for readers of the journal; JSON values.
        """
        settings = self._shared.settings
        code: list[Any] = [settings.entrypoints.get(self._environment), settings.tools]
        code += [self._shared.records.code]
        code += [source.schemas[name] for name, source in self._shared.sources.items()]
        shaping = [code, settings.parameters, settings.seed, settings.answer_characters]
        question = digest(shaping, self._row)
        record = await self._perform("begin", question, self._row, self._reset, notes)
        if self._failure is not None:
            return Begun(failure=self._failure)
        self._past, self._snapshot = digest(question, record["observation"]), record.get("snapshot")
        self._begun = Begun(record["observation"])
        return self._begun

    def fail(self, failure: EpisodeFailure) -> Begun:
        """Begin with a failure."""
        self._failure = failure
        return Begun(failure=failure)

    async def act(self, turn: int, calls: Calls, notes: Record = NO_NOTES) -> Acted:
        """Make the calls of a turn; see `begin` for the notes."""
        if self._failure is not None:
            return Acted(failure=self._failure)
        calls = check_calls(calls)
        written = [_call_json(call) for call in calls]
        question = digest(self._past, turn, written)
        record = await self._perform(
            f"turn {turn}",
            question,
            calls,
            lambda: self._run_turn(turn, calls, question),
            {"calls": written, **notes},
        )
        if self._failure is not None:
            return Acted(failure=self._failure)
        answers = tuple(record["answers"])
        repeatable = [
            (index, call.name, call.arguments)
            for index, call in enumerate(calls)
            if isinstance(call, ToolCall) and self._may_repeat(call)
        ]
        self._turns.append(PastTurn(turn, repeatable, answers, record["reward"]))
        self._snapshot = record.get("snapshot", self._snapshot)
        self._past = digest(question, answers, record["reward"])
        return Acted(answers, record["reward"], tuple(record["wrong"]))

    async def end(self, reason: str, notes: Record = NO_NOTES) -> Ended:
        """Ask for the reward.

        Args:
            reason: why the conversation ends, for readers of the journal.
            notes: see `begin`.
        """
        if self._failure is not None:
            return Ended(failure=self._failure)
        question = digest(self._past, "end")
        record = await self._perform("end", question, reason, lambda: self._reward(reason), notes)
        if self._failure is not None:
            return Ended(failure=self._failure)
        return Ended(record["reward"])

    async def drop_process(self) -> None:
        """End its process; a later action makes it again."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _perform(
        self,
        action: str,
        question: str,
        shown: object,
        run: Callable[[], Awaitable[Record]],
        notes: Record,
    ) -> Record:
        """Return the record of an action: one of the journal, or that of running it now."""
        party = f"{PARTY} {action}"
        recorded = self._shared.records.find(self._key, party, question, shown)
        if recorded is not None:
            await self.drop_process()  # it lacks what this record says
            self._requests.spent += recorded["seconds"]
            self._take_failure(recorded)
            return recorded
        before = self._requests.spent
        is_final: bool | None = True
        try:
            result = await run()
        except ActionFailed as failed:
            await self.drop_process()
            result, is_final = {"failure": [failed.kind.value, failed.detail]}, failed.is_final
        except BaseException:  # a cancelled request has left the process anywhere
            await self.drop_process()
            raise
        seconds = round(self._requests.spent - before, 3)
        record = {**result, "seconds": seconds, "notes": dict(notes)}
        if is_final is not None:
            self._shared.records.add(self._key, party, question, record, is_final)
        self._take_failure(record)
        return record

    def _take_failure(self, record: Record) -> None:
        if "failure" in record:
            kind, detail = record["failure"]
            self._failure = EpisodeFailure(FailureKind(kind), detail)

    async def _reset(self) -> Record:
        if not self._shared.settings.entrypoints:
            return {"observation": None}
        reply = await self._in_process(lambda process: self._requests.send(process, self._opening))
        return {"observation": self._observation_of(reply), **_snapshot_of(reply)}

    @property
    def _opening(self) -> frames.Message:
        """Return the request that makes the object."""
        seed = digest(self._shared.settings.seed, self._key.call, self._key.row)
        opening = {"do": "reset", "environment": self._environment, "seed": seed}
        return {**opening, "row": dict(self._row)}

    def _observation_of(self, reply: frames.Message) -> str | None:
        limit = self._shared.settings.answer_characters
        text: str | None = _checked(lambda: observation_text(reply.get("observation"), limit))
        return text

    async def _reward(self, reason: str) -> Record:
        if not self._facts.has_reward:
            return {"reward": None, "reason": reason}
        reply = await self._in_process(
            lambda process: self._requests.send(process, {"do": "reward"})
        )
        reward = _checked(lambda: reward_value(reply.get("reward"), "reward"))
        return {"reward": reward, "reason": reason}

    async def _run_turn(self, turn: int, calls: Calls, question: str) -> Record:
        """Make the calls of a turn that nobody knows the answers to."""
        records, limit = self._shared.records, self._shared.settings.answer_characters
        answers: dict[int, CallAnswer] = {}

        def keep(index: int, answer: CallAnswer) -> None:
            answers[index] = CallAnswer(shorten(answer.text, limit), answer.is_error)
            call = calls[index]
            if isinstance(call, ToolCall) and not self._may_repeat(call):
                record = {"text": answers[index].text, "is_error": answer.is_error}
                party = f"{PARTY} turn {turn} call {index}"
                records.add(self._key, party, digest(question, index), record)

        for index, call in enumerate(calls):
            if isinstance(call, MalformedCall):
                keep(index, CallAnswer(error_text(call.problem), is_error=True))
            elif not self._may_repeat(call):
                party = f"{PARTY} turn {turn} call {index}"
                recorded = records.find(self._key, party, digest(question, index), call)
                if recorded is not None:
                    answers[index] = CallAnswer(recorded["text"], recorded["is_error"])
        remote, local = self._split(calls)
        pending = {index: call for index, call in remote.items() if index not in answers}
        if pending:
            await self._requests.ask_sources(self._key, pending, self._shared.sources, keep)
        reply = await self._run_in_process(turn, local, answers, keep)
        reward = _checked(lambda: turn_reward_value(reply.get("reward")))
        return {
            "answers": [answers[index].text for index in range(len(calls))],
            "reward": reward,
            "wrong": [index for index in range(len(calls)) if answers[index].is_error],
            **_snapshot_of(reply),
        }

    def _split(self, calls: Calls) -> tuple[dict[int, ToolCall], dict[int, ToolCall]]:
        """Return the calls of other sources, and those of the process."""
        remote: dict[int, ToolCall] = {}
        local: dict[int, ToolCall] = {}
        for index, call in enumerate(calls):
            if isinstance(call, ToolCall):
                (remote if call.name in self._shared.sources else local)[index] = call
        return remote, local

    async def _run_in_process(
        self,
        turn: int,
        local: Mapping[int, ToolCall],
        answers: Mapping[int, CallAnswer],
        keep: OnAnswer,
    ) -> frames.Message:
        """Make the calls of a turn that the process makes; returns its last reply."""

        async def run(process: ProcessHandle) -> frames.Message:
            # A process that was rebuilt meanwhile lacks the state of repeatable calls only.
            pending = self._unanswered(local, answers)
            calls = [(index, call.name, call.arguments) for index, call in pending.items()]
            return await self._requests.act(process, turn, calls, keep)

        if not self._unanswered(local, answers) and not self._facts.has_turn_reward:
            return {}
        return await self._in_process(run)

    def _unanswered(
        self, local: Mapping[int, ToolCall], answers: Mapping[int, CallAnswer]
    ) -> dict[int, ToolCall]:
        return {
            index: call
            for index, call in local.items()
            if index not in answers or self._may_repeat(call)
        }

    def _may_repeat(self, call: ToolCall) -> bool:
        if call.name in self._shared.sources:
            return False
        tool = self._facts.tools.get(call.name)
        return tool is None or tool.repeats

    async def _in_process(
        self, action: Callable[[ProcessHandle], Awaitable[frames.Message]]
    ) -> frames.Message:
        """Run an action in the process; if this ends, once more in a rebuilt one."""
        # Another process than the tool may have ended it: the kernel's memory killer, a person.
        try:
            return await action(await self._ready_process())
        except ProcessEnded:
            self._process = None
        try:
            return await action(await self._ready_process())
        except ProcessEnded as gone:
            self._process = None
            raise ActionFailed(
                FailureKind.ENVIRONMENT_FAILED,
                f"the conversation's process ended twice in one action: with {gone}",
                is_final=None,
            ) from None

    async def _ready_process(self) -> ProcessHandle:
        """Return the process, with the state after all that has happened so far."""
        if self._process is None:
            self._process = await self._shared.start_process()
            if self._begun is not None:
                await self._rebuild(self._process, self._begun)
        return self._process

    async def _rebuild(self, process: ProcessHandle, begun: Begun) -> None:
        """Give a new process the state of the conversation."""
        records, call = self._shared.records, self._key.call
        rebuild = Rebuild(
            TimedRequests(self._shared.settings, is_rebuild=True),
            self._observation_of,
            self._facts.has_turn_reward,
            lambda: records.count_mismatch(call),
        )
        past = Past(self._opening, begun.observation, self._turns, self._snapshot)
        await rebuild.run(process, past)


def _checked(read: Callable[[], Any]) -> Any:
    """Return a value of a process, which may send anything."""
    try:
        return read()
    except BadValue as error:
        raise ActionFailed(FailureKind.ENVIRONMENT_FAILED, str(error), is_final=False) from None


def _snapshot_of(reply: frames.Message) -> frames.Message:
    return {"snapshot": reply["snapshot"]} if "snapshot" in reply else {}


def _call_json(call: ToolCall | MalformedCall) -> list[Any]:
    if isinstance(call, ToolCall):
        return [call.name, dict(call.arguments)]
    return [call.text, call.problem]
