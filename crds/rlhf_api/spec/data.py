"""Data of a job: rows to train on and to evaluate on, and the reaction to unusable ones."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.alias_generators import to_snake

from rlhf_api.base import Contract, Count, Text
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.row_sources import (
    DataSource,
    MixedData,
    NamedSource,
    TemplateUse,
    TrainOn,
    WeightedSource,
)
from rlhf_api.spec.truncation import MinP, TopK, TopP, Truncation, is_truncated


class OnInvalidRow(StrEnum):
    """Reaction to a row without a usable prompt or answer, or with a number that is not finite."""

    FAIL = "Fail"
    """The job stops and names the row."""
    SKIP = "Skip"
    """The row is counted and left out."""


class OnLongPrompt(StrEnum):
    """Reaction to a prompt of more than rollout.maxPromptTokens tokens."""

    FAIL = "Fail"
    """The job stops and names the row."""
    SKIP = "Skip"
    """The prompt is counted and left out."""


def _exclusive_with_text_field(name: str) -> Rule:
    field = to_snake(name)
    return Rule(
        holds=f"!has(self.textField) || !has(self.{name})",
        what=f"{name} together with textField, whose complete texts are trained on",
        do="remove one of them",
        field=f".{name}",
        check=lambda self: violation_if(
            self.text_field is not None and getattr(self, field) is not None, getattr(self, field)
        ),
    )


_HAS_PROMPTS = "(has(self.answerField) || has(self.builtin) || has(self.reasoningGym))"


class PreferenceFields(Contract):
    """Columns with the two responses of a pair: texts, or lists of {role, content} messages.
    Messages that both lists begin with become the prompt, or its continuation. The rest of each is
    one message of the assistant; with trainOn: AllAnswers it begins and ends with one."""

    chosen_field: Text = "chosen"
    """Column with the preferred response."""
    rejected_field: Text = "rejected"
    """Column with the rejected response."""


class TrainingData(MixedData):
    """Rows to train on: prompts, prompts with answers, or prompts with pairs of responses."""

    sources: Annotated[tuple[WeightedSource, ...], Field(min_length=1, max_length=16)] | None = None
    """Several sources, of which every step takes prompts by their weights. Each has an order and
    epochs of its own."""
    preferences: PreferenceFields | None = None
    """Columns of preference pairs: every row is a prompt with a chosen and a rejected response.
    `{}` uses the default column names, which SortDigits also has. Default: rows are not pairs."""
    train_on: TrainOn = TrainOn.LAST_ANSWER
    """Answers of a conversation to train on, for a warm start, and for algorithms that train on the
    answers or pairs of the data. The prompt ends before the first of them;
    rollout.maxResponseTokens bounds all tokens from there to the end of the last one."""

    validations: ClassVar = (
        *MixedData.validations,
        Rule(
            holds="!has(self.preferences) || !has(self.answerField)",
            what="answerField together with preferences, whose responses are the answers",
            do="remove one of them",
            field=".answerField",
            check=lambda self: violation_if(
                self.preferences is not None and self.answer_field is not None, self.answer_field
            ),
        ),
        Rule(
            holds="!has(self.preferences) || !has(self.sources) || "
            "!self.sources.exists(source, has(source.answerField))",
            what="answerField together with preferences, whose responses are the answers",
            do="remove one of them",
            field=".sources",
            check=lambda self: _answers_beside_pairs(self),
        ),
    )

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each source; empty if there are no several."""
        return tuple(source.weight for source in self.sources or ())

    @property
    def trains_all_answers(self) -> bool:
        """True if some source trains on all answers of its conversations."""
        return any(part.train_on is TrainOn.ALL_ANSWERS for part in self.parts)


def _answers_beside_pairs(data: TrainingData) -> Iterator[Violation]:
    for index, source in enumerate(data.sources or ()):
        if data.preferences is not None and source.answer_field is not None:
            yield Violation(source.answer_field, ("sources", index, "answerField"))


class EvaluationData(MixedData):
    """Evaluation prompts, and the sampling of their responses."""

    sources: Annotated[tuple[NamedSource, ...], Field(min_length=1, max_length=16)] | None = None
    """Several sets of prompts, all of which are answered. Each has metrics of its own,
    evaluation/<source>/<metric>, beside those over all prompts together."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Responses per prompt."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: TopP | None = None
    """As rollout.topP, which evaluation does not use. Default: all tokens."""
    top_k: TopK | None = None
    """As rollout.topK, which evaluation does not use. Default: all tokens."""
    min_p: MinP | None = None
    """As rollout.minP, which evaluation does not use. Default: all tokens."""
    pass_at_k: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(max_length=8)] = ()
    """Values of k for which pass@k is measured: the probability that at least one of k responses
    passes, estimated from all samplesPerPrompt. Default: none."""
    pass_score: float = 1.0
    """Lowest score of a response that passes."""

    validations: ClassVar[tuple[Rule, ...]] = (
        *MixedData.validations,
        Rule(
            holds="self.passAtK.all(k, k <= self.samplesPerPrompt)",
            what="pass@k of more responses than there are",
            allowed="at most samplesPerPrompt",
            do="lower it, or raise samplesPerPrompt",
            field=".passAtK",
            check=lambda self: violation_if(
                max(self.pass_at_k, default=0) > self.samples_per_prompt,
                max(self.pass_at_k, default=0),
                f"at most samplesPerPrompt, {self.samples_per_prompt}",
            ),
        ),
        Rule(
            holds=f"self.temperature > 0.0 || !({is_truncated('self')})",
            what="truncated sampling of greedy responses, which take the likeliest token",
            allowed="topP, topK and minP with a temperature above 0",
            do="write temperature: 1, or remove topP, topK and minP",
            field=".temperature",
            check=lambda self: violation_if(
                self.temperature == 0 and self.truncation.is_active, "0"
            ),
        ),
    )

    @property
    def truncation(self) -> Truncation:
        """Truncation of sampling in evaluations."""
        return Truncation(self.top_p, self.top_k, self.min_p)


class PretrainingData(DataSource):
    """Rows for an additional loss, on complete texts or on answers to prompts."""

    text_field: Text | None = None
    """Column with texts; every token is trained on. Text beyond rollout.maxPromptTokens +
    rollout.maxResponseTokens is cut off. Default: text, unless answerField is set; builtin and
    reasoningGym data are prompts with answers."""
    rows_per_step: Count | None = None
    """Rows of each step. Default: schedule.promptsPerStep."""

    validations: ClassVar = (
        *DataSource.validations,
        _exclusive_with_text_field("answerField"),
        _exclusive_with_text_field("chatTemplateArgumentsField"),
        _exclusive_with_text_field("builtin"),
        _exclusive_with_text_field("reasoningGym"),
        Rule(
            holds=f"!has(self.systemPrompt) || {_HAS_PROMPTS}",
            what="a system prompt for complete texts, which are trained on unchanged",
            do="remove it, or name answers to prompts by answerField",
            field=".systemPrompt",
            check=lambda self: violation_if(
                self.texts is not None and self.system_prompt is not None, self.system_prompt
            ),
        ),
        Rule(
            holds=f"self.chatTemplate != 'Always' || {_HAS_PROMPTS}",
            what="a chat template for complete texts, which are trained on unchanged",
            do="remove it, or name answers to prompts by answerField",
            field=".chatTemplate",
            check=lambda self: violation_if(
                self.texts is not None and self.chat_template is TemplateUse.ALWAYS,
                self.chat_template.value,
            ),
        ),
        Rule(
            holds="!has(self.rowsPerStep) || !has(self.maxRows) || "
            "self.rowsPerStep <= self.maxRows",
            what="more rows per step than there are",
            do="lower it, or raise maxRows",
            field=".rowsPerStep",
            check=lambda self: violation_if(
                None not in (self.rows_per_step, self.max_rows)
                and self.rows_per_step > self.max_rows,
                self.rows_per_step,
                f"at most maxRows, {self.max_rows}",
            ),
        ),
    )

    @property
    def texts(self) -> str | None:
        """Column with complete texts. None: rows are prompts with answers."""
        # Rules exclude textField in these cases.
        if self.answer_field is not None or self.is_generated:
            return None
        return self.text_field or "text"


class DataSpec(Contract):
    """Training and evaluation data."""

    train: TrainingData
    """Rows to train on."""
    pretraining: PretrainingData | None = None
    """Additional rows that the algorithm trains on, such as Safe-RLHF's ptx loss. A step gets them
    by flow.pretraining(). Default: none."""
    evaluation: EvaluationData | None = None
    """Evaluation prompts. Default: none; a builtin task as the only source has its own if the job
    scores responses."""
    shuffle: bool = True
    """If true, every epoch has a new order, derived from schedule.seed."""
    on_invalid_row: OnInvalidRow = OnInvalidRow.FAIL
    """Reaction to a row whose prompt, or answer to train on, is missing, empty or not a text, or
    whose answer is too long: Fail or Skip."""
    on_long_prompt: OnLongPrompt = OnLongPrompt.FAIL
    """Reaction to a prompt longer than rollout.maxPromptTokens: Fail or Skip."""

    @property
    def evaluation_names(self) -> tuple[str, ...]:
        """Name of each of several evaluation sources, which have metrics of their own."""
        return () if self.evaluation is None else self.evaluation.source_names
