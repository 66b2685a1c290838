"""Conversations of a role: from a generate call to the columns of its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlhf_flow.step.columns import (
    EPISODE,
    PROMPT_ID,
    PROMPT_TOKENS,
    RECORD,
    SAMPLE_INDEX,
    TURN_REWARDS,
)
from rlhf_runtime.calls.episodes import EpisodeId
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.reports import EpisodeReport, Statistics
from rlhf_runtime.conversations.answer_cutter import AnswerCutter
from rlhf_runtime.conversations.conversation import Conversation
from rlhf_runtime.conversations.conversations import Conversations, SamplingOf
from rlhf_runtime.conversations.interfaces import (
    ConversationSettings,
    ConversationTools,
    EnvironmentAccess,
)
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.data.tool_calls.job_dialogues import job_dialogues
from rlhf_runtime.dataplane.columns import Column, Rows, pack, pack_texts
from rlhf_runtime.engines.generation import GenerationEngine
from rlhf_runtime.engines.response_batch import Generated, ResponseBatch
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.tool_call import MalformedCall
from rlhf_runtime.hooks import Hook
from rlhf_runtime.models.context import max_sequence_tokens
from rlhf_runtime.roles.context import RoleContext
from rlhf_runtime.roles.sequence_migration import Prompts


@dataclass(frozen=True)
class ConversationMaker:
    """Makes the conversations of a role's generate calls."""

    tokenizer: TextTokenizer
    access: EnvironmentAccess
    dialogues: Mapping[str, ToolDialogue]
    """By environment."""
    settings: ConversationSettings
    tick: Hook

    @staticmethod
    def from_context(context: RoleContext, tokenizer: TextTokenizer) -> ConversationMaker | None:
        """Make the conversations of a role. None: its responses have one turn.

        Raises:
            ToolsUnusable, ChatTemplateUnusable: see `job_dialogues`.
        """
        rollout, access = context.job.spec.rollout, context.environment
        if rollout.environment is None:
            return None
        assert access is not None, "workers with engines reach an environment host"
        settings = ConversationSettings(
            environment=rollout.environment,
            max_prompt_tokens=rollout.max_prompt_tokens,
            max_tokens=rollout.max_response_tokens,
            max_sequence_tokens=max_sequence_tokens(rollout, context.folder),
            capacity=max(1, rollout.environment.concurrency // _engines_on_node(context)),
        )
        return ConversationMaker(
            tokenizer,
            access,
            job_dialogues(context.job.spec, tokenizer, access.description),
            settings,
            context.tick,
        )

    def start(
        self,
        inputs: CallInputs,
        prompts: Prompts,
        engine: GenerationEngine,
        responses: ResponseBatch,
        sampling: SamplingOf,
        *,
        records_kept_tokens: bool,
    ) -> ConversationRows:
        """Prepare the conversations of a call.

        Args:
            inputs: of the call.
            prompts: one row per conversation.
            engine: that generates them.
            responses: an empty batch of the engine.
            sampling: of turns.
            records_kept_tokens: True if the sampling records the tokens that it kept.
        """
        # The ranks of an engine do the same; one of them talks to the environment.
        is_first = inputs.at.tensor == inputs.at.pipeline == 0
        tools = ConversationTools(
            self._decode,
            AnswerCutter(self.tokenizer, self.settings.environment.limits).cut,
            self.access.connect() if is_first else None,
            self.tick,
        )
        conversations = [
            Conversation(
                row=row,
                dialogue=self._dialogue(record),
                record=record,
                prompt=np.asarray(tokens, dtype=np.int32),
                max_tokens=self.settings.max_tokens,
                prompt_id=prompt_id,
                sample=sample,
                records_kept_tokens=records_kept_tokens,
            )
            for row, record, tokens, prompt_id, sample in zip(
                prompts.index.rows.tolist(),
                prompts.columns[RECORD].texts(),
                prompts.columns[PROMPT_TOKENS].runs(),
                prompts.columns[PROMPT_ID].values.tolist(),
                prompts.columns[SAMPLE_INDEX].values.tolist(),
                strict=True,
            )
        ]
        episode = partial(_episode_id, inputs)
        loop = Conversations(self.settings, tools, engine, responses, sampling, episode)
        return ConversationRows(conversations, loop, self.access.description.notices)

    def _dialogue(self, record: str) -> ToolDialogue:
        row = json.loads(record)["record"]
        return self.dialogues[self.access.description.environment_of(row) or ""]

    def _decode(self, tokens: NDArray[np.int32]) -> str:
        return self.tokenizer.decode(pack([tokens], np.int32))[0]


class ConversationRows:
    """The conversations of a call, as rows of its batch."""

    def __init__(
        self,
        conversations: Sequence[Conversation],
        loop: Conversations,
        notices: Sequence[str] = (),
    ) -> None:
        """
        Args:
            conversations: one per row.
            loop: runs them.
            notices: facts about the environments that users should know.
        """
        self._conversations = conversations
        self._loop = loop
        self._notices = notices

    def run(self, after_step: Callable[[], None]) -> None:
        """Run all conversations; `after_step` after every decode step."""
        self._loop.run(self._conversations, after_step)

    def has_ended(self) -> NDArray[np.bool_]:
        """Return bool[rows]: true if the conversation has ended, and its reward is there."""
        self._loop.collect_rewards()
        return np.array([one.has_final_reply for one in self._conversations], dtype=np.bool_)

    def generated(self, rows: Rows | None = None) -> Generated:
        """Return the responses of some rows that have ended; None: of all."""
        chosen = self._select(rows)
        records = any(one.records_kept_tokens for one in self._conversations)
        kept = pack([one.kept_tokens for one in chosen], np.int32) if records else None
        return Generated(
            pack([one.tokens for one in chosen], np.int32),
            pack([one.log_probs for one in chosen], np.float32),
            tuple(one.reason for one in chosen),
            kept,
            pack([one.mask for one in chosen], np.int8),
        )

    @property
    def report(self) -> EpisodeReport:
        """Outcome of all conversations."""
        failures = [one.failure for one in self._conversations if one.failure is not None]
        first = failures[0].detail if failures else ""
        notices = (*self._notices, *journal_notices(self._loop.records))
        return EpisodeReport(len(self._conversations), len(failures), first, notices)

    @property
    def statistics(self) -> Statistics:
        """Metrics of conversations."""
        count = float(len(self._conversations))
        turns = [turn for one in self._conversations for turn in one.turns]
        calls = [call for turn in turns for call in turn.calls]
        num_malformed = float(sum(isinstance(call, MalformedCall) for call in calls))
        num_errors = float(sum(len(turn.wrong) for turn in turns))
        num_answers = float(sum(len(turn.answers) for turn in turns))
        return Statistics(
            means={
                "environment/turns": (float(len(turns)), count),
                "environment/calls": (float(len(calls)), count),
                "environment/malformed_calls": (num_malformed, float(len(calls))),
                "environment/call_errors": (num_errors, num_answers),
            },
            sums={
                "environment/failed": float(self.report.num_failed),
                "environment/mismatches": float(self._loop.records.num_mismatches),
            },
        )

    def columns(self, rows: Rows | None = None) -> Mapping[str, Column]:
        """Return the columns of conversations alone, and those of their prompts that changed."""
        chosen = self._select(rows)
        return {
            PROMPT_TOKENS: pack([one.prompt for one in chosen], np.int32),
            RECORD: pack_texts([one.record for one in chosen]),
            EPISODE: pack_texts([one.to_record() for one in chosen]),
            TURN_REWARDS: pack([one.turn_rewards for one in chosen], np.float32),
        }

    def _select(self, rows: Rows | None) -> Sequence[Conversation]:
        if rows is None:
            return self._conversations
        return [self._conversations[row] for row in rows.tolist()]


def journal_notices(counts: RecordCounts) -> tuple[str, ...]:
    """Say what the journal was used for. The same texts in every step: they are shown once.

    Args:
        counts: of a call's records.
    """
    notices = []
    if counts.num_read:
        notices.append(
            "answers of tools in steps that run again are read from the journal: finished "
            "conversations call no tool again"
        )
    if counts.num_different:
        notices.append(
            "steps that run again have other conversations than in the interrupted attempt: their "
            "tools are called again"
        )
    if counts.num_mismatches:
        notices.append(
            "some conversations were rebuilt, and their tools answered otherwise than before: "
            "these are left out (environment/mismatches)"
        )
    return (*notices, *counts.damage_notices)


def _engines_on_node(context: RoleContext) -> int:
    """Return how many engines share the environment host of this rank's node."""
    plan = context.plan.generation(context.role)
    assert plan is not None
    per_node = context.plan.pool(plan.mesh.pool).devices_per_node
    # The first rank of an engine talks to the host of its node.
    nodes = [group[0] // per_node for group in plan.mesh.tensor_groups]
    return nodes.count(context.world.rank // per_node)


def _episode_id(inputs: CallInputs, row: int) -> EpisodeId:
    return EpisodeId(
        inputs.graph, inputs.step, inputs.repetition, inputs.call.id, inputs.round, row
    )
