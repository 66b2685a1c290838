"""Tokenizes prompts and responses for a model with another tokenizer than the policy's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardTokenizer
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.load import evaluation_source, source_names
from rlhf_runtime.data.row_checks import RowProblem
from rlhf_runtime.data.row_record import rows_by_source
from rlhf_runtime.data.row_responses import prompt_and_answer
from rlhf_runtime.data.row_text import PromptWriter
from rlhf_runtime.data.rows import single_sources
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, concatenate, pack


class Sequences(NamedTuple):
    """Token ids of rows, divided into prompt and response."""

    prompts: Column
    """int32 [rows, ragged]: the common prefix of a group's rows, at least one token."""
    responses: Column
    """int32 [rows, ragged]."""


class Retokenizer:
    """Renders conversations as texts and tokenizes them.

    With a chat template a conversation ends with the response as the assistant's message. Without
    one it ends with the end token if the response ended by itself.
    """

    def __init__(
        self, role: str, source: DataSource, setting: SourceSetting, tokenizer: TextTokenizer
    ) -> None:
        """Choose the form of conversations.

        Args:
            role: owner of the tokenizer, for messages.
            source: of the prompts, a single one.
            setting: the manifest's field of the source.
            tokenizer: the model's.

        Raises:
            ChatTemplateUnusable: the source needs a template and the tokenizer has none.
        """
        self._role = role
        self._source = source
        self._tokenizer = tokenizer
        try:
            self._writer = PromptWriter(source, setting, tokenizer)
        except ChatTemplateUnusable as error:
            raise ChatTemplateUnusable(f"the tokenizer of {role}: {error}") from error

    def sequences(
        self,
        records: Sequence[str],
        responses: Sequence[str],
        finished: NDArray[np.bool_],
        groups: NDArray[np.int64],
    ) -> Sequences:
        """Tokenize each prompt with its response.

        Args:
            records: of the rows, as the data host writes them.
            responses: texts.
            finished: True if the response ended by itself, bool [rows].
            groups: rows of the same number have the same prompt, int64 [rows].

        Raises:
            ChatTemplateUnusable: the template refuses a conversation.
        """
        rows = [json.loads(text)["record"] for text in records]
        prompts = [prompt_and_answer(row, self._source)[0] for row in rows]
        try:
            arguments = [self._writer.arguments(row) for row in rows]
            if self._writer.is_templated:
                conversations = zip(prompts, responses, arguments, strict=True)
                texts = [self._writer.write_answered(*parts) for parts in conversations]
                return _split_sequences(
                    self._tokenizer.encode(texts, add_special_tokens=False), groups
                )
            written = list(map(self._writer.write, prompts, arguments))
        except RowProblem as problem:
            raise ChatTemplateUnusable(
                f"the tokenizer of {self._role} cannot render a prompt: {problem}; allowed prompts "
                "that its chat template accepts; choose another reward model, or change the prompts"
            ) from problem
        ends = np.asarray([self._tokenizer.eos_token_id], dtype=np.int32)
        runs = self._tokenizer.encode(responses, add_special_tokens=False).runs()
        # A truncated response has no end token, and the reward model should see that.
        closed = [
            np.concatenate([run, ends]) if is_finished else run
            for run, is_finished in zip(runs, finished, strict=True)
        ]
        return Sequences(
            self._tokenizer.encode(written, add_special_tokens=True), pack(closed, np.int32)
        )


class SplitRetokenizer:
    """Tokenizes prompts of all sources of a split."""

    def __init__(self, role: str, split: Split, data: DataSource, tokenizer: TextTokenizer) -> None:
        """Choose the form of conversations for each source; for errors see `Retokenizer`.

        Args:
            role: owner of the tokenizer, for messages.
            split: the role of the sources in the job.
            data: the sources.
            tokenizer: the model's.
        """
        names = source_names(data) or (None,)
        self._by_source = {
            name: Retokenizer(role, source, setting, tokenizer)
            for name, (setting, source) in zip(names, single_sources(split, data), strict=True)
        }

    def sequences(
        self,
        records: Sequence[str],
        responses: Sequence[str],
        finished: NDArray[np.bool_],
        groups: NDArray[np.int64],
    ) -> Sequences:
        """Tokenize each prompt with its response; see `Retokenizer`."""
        by_source = rows_by_source(records)
        # A rank may have no rows of several sources.
        if not by_source:
            first, *_ = self._by_source.values()
            return first.sequences(records, responses, finished, groups)
        prompts, answers = [], []
        for name, rows in by_source.items():
            own = self._by_source[name].sequences(
                [records[row] for row in rows],
                [responses[row] for row in rows],
                finished[rows],
                groups[rows],
            )
            prompts.append(own.prompts)
            answers.append(own.responses)
        order = np.argsort(np.concatenate(list(by_source.values())))
        return Sequences(concatenate(prompts).take(order), concatenate(answers).take(order))


def retokenizers(spec: RLHFJobSpec, role: str, folder: Path) -> dict[Split, SplitRetokenizer]:
    """Build the retokenizers of a reward model with its own tokenizer; empty for other roles.

    Args:
        spec: of the job.
        role: of the reward model.
        folder: of its model.

    Raises:
        TokenizerUnusable, ChatTemplateUnusable: its tokenizer or template is unusable.
    """
    reward = spec.reward_models.get(role)
    if reward is None or reward.tokenizer is not RewardTokenizer.OWN:
        return {}
    tokenizer = TextTokenizer(folder)
    sources = {Split.TRAIN: spec.data.train, Split.EVALUATION: evaluation_source(spec.data)}
    return {
        split: SplitRetokenizer(role, split, source, tokenizer)
        for split, source in sources.items()
        if source is not None
    }


def _split_sequences(column: Column, groups: NDArray[np.int64]) -> Sequences:
    """Split rows after the common prefix of their group, and before their last token."""
    # With a template prompt and response are one text, whose tokens may merge at the boundary: the
    # common prefix is the part that rows can share.
    runs = [np.asarray(run) for run in column.runs()]
    common: dict[int, NDArray[Any]] = {}
    for group, run in zip(groups.tolist(), runs, strict=True):
        shared = common.setdefault(group, run[: max(1, len(run) - 1)])
        length = min(len(shared), max(1, len(run) - 1))
        # The first difference ends the prefix; at least one token stays in it.
        differ = np.flatnonzero(shared[:length] != run[:length])
        common[group] = shared[: max(1, int(differ[0]) if len(differ) else length)]
    cuts = [len(common[group]) for group in groups.tolist()]
    return Sequences(
        pack([run[:cut] for run, cut in zip(runs, cuts, strict=True)], np.int32),
        pack([run[cut:] for run, cut in zip(runs, cuts, strict=True)], np.int32),
    )
