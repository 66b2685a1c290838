"""Rows of data: where they come from and how they become token ids."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.alias_generators import to_snake

from rlhf_api.base import Contract, Count, Text
from rlhf_api.exclusive import Alternatives
from rlhf_api.rules import Rule, violation_if


class BuiltinData(StrEnum):
    """Tasks made on the spot."""

    SORT_DIGITS = "SortDigits"
    """Sort six random digits: `402991=` wants `012499`; train and evaluation never overlap."""


class ChatTemplate(StrEnum):
    """Whether prompts pass through the tokenizer's chat template."""

    AUTO = "Auto"
    """Yes if the prompt field holds messages, or the tokenizer has a chat template."""
    ALWAYS = "Always"
    """Yes; a text becomes one user message."""
    NEVER = "Never"
    """No; the prompt field holds the text that the model continues."""


class OnInvalidRow(StrEnum):
    """What happens to a row without a usable prompt or answer, or with a number not finite."""

    FAIL = "Fail"
    """The job stops and names the row."""
    SKIP = "Skip"
    """The row is counted and left out."""


class OnLongPrompt(StrEnum):
    """What happens to a prompt of more than rollout.maxPromptTokens tokens."""

    FAIL = "Fail"
    """The job stops and names the row."""
    SKIP = "Skip"
    """The prompt is counted and left out."""


def _part_of_a_dataset(name: str) -> Rule:
    return Rule(
        holds=f"!has(self.{name}) || has(self.huggingFace)",
        what=f"{name} is for huggingFace data only",
        do="remove it",
        field=f".{name}",
        check=lambda self: violation_if(
            getattr(self, name) is not None and self.hugging_face is None, getattr(self, name)
        ),
    )


def _beside_text_field(name: str) -> Rule:
    field = to_snake(name)
    return Rule(
        holds=f"!has(self.textField) || !has(self.{name})",
        what=f"{name} beside textField, whose texts are trained on whole",
        do="remove one of them",
        field=f".{name}",
        check=lambda self: violation_if(
            self.text_field is not None and getattr(self, field) is not None, getattr(self, field)
        ),
    )


_HAS_PROMPTS = "has(self.answerField) || has(self.builtin)"


class DataSource(Alternatives):
    """Rows with prompts: exactly one of path, huggingFace, builtin."""

    alternatives: ClassVar = ("path", "hugging_face", "builtin")

    path: Text | None = None
    """A .parquet, .jsonl or .json file as the workers see it. For `rlhf run` relative to the
    manifest's folder."""
    hugging_face: Text | None = None
    """A Hugging Face dataset id, such as openai/gsm8k."""
    builtin: BuiltinData | None = None
    """A task made on the spot."""
    configuration: Text | None = None
    """The configuration of a Hugging Face dataset, such as main. Default: its only one."""
    split: Text | None = None
    """The split of a Hugging Face dataset. Default: train, and test for evaluation."""
    prompt_field: Text = "prompt"
    """The column with the prompt: a text, or a list of {role, content} messages."""
    answer_field: Text | None = None
    """The column with the reference answer, the target of a warm start, and of a custom step that
    trains on answers. Default: answer, for a warm start and builtin data only."""
    system_prompt: Annotated[str, Field(max_length=16384)] | None = None
    """A system message put before every prompt. Default: none."""
    chat_template: ChatTemplate = ChatTemplate.AUTO
    """Whether prompts pass through the tokenizer's chat template."""
    max_rows: Count | None = None
    """Use only so many first rows. Default: all."""

    validations: ClassVar[tuple[Rule, ...]] = (
        _part_of_a_dataset("configuration"),
        _part_of_a_dataset("split"),
    )


class PreferenceFields(Contract):
    """The columns with the two responses of a pair: texts, or lists of {role, content} messages. A
    beginning that both lists share is the prompt, or goes on with it."""

    chosen_field: Text = "chosen"
    """The column with the response that was preferred."""
    rejected_field: Text = "rejected"
    """The column with the other one."""


class TrainingData(DataSource):
    """Rows to train on: prompts, prompts with answers, or prompts with pairs of responses."""

    preferences: PreferenceFields | None = None
    """Every row is a prompt with a chosen and a rejected response; `{}` for columns of these names,
    which a builtin task has, too. Default: it is no pair."""

    validations: ClassVar = (
        *DataSource.validations,
        Rule(
            holds="!has(self.preferences) || !has(self.answerField)",
            what="answerField beside preferences, whose responses are the answers",
            do="remove one of them",
            field=".answerField",
            check=lambda self: violation_if(
                self.preferences is not None and self.answer_field is not None, self.answer_field
            ),
        ),
    )


class EvaluationData(DataSource):
    """Held-out prompts and how they are answered."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Responses per prompt."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Sampling temperature; 0 is greedy."""
    pass_at_k: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(max_length=8)] = ()
    """Numbers k of which pass@k is measured: how likely at least one of k responses passes,
    estimated from all samplesPerPrompt. Default: none."""
    pass_score: float = 1.0
    """A response passes with a score of at least so much."""

    validations: ClassVar[tuple[Rule, ...]] = (
        *DataSource.validations,
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
    )


class PretrainingData(DataSource):
    """Rows for a loss beside the algorithm's own, on whole texts or on answers to prompts."""

    text_field: Text | None = None
    """The column with texts, of which every token is trained on; what is over
    rollout.maxPromptTokens + rollout.maxResponseTokens is left out. Default: text, where there is
    no answerField; builtin data are prompts with answers."""
    rows_per_step: Count | None = None
    """Rows of each step. Default: schedule.promptsPerStep."""

    validations: ClassVar = (
        *DataSource.validations,
        _beside_text_field("answerField"),
        _beside_text_field("builtin"),
        Rule(
            holds=f"!has(self.systemPrompt) || {_HAS_PROMPTS}",
            what="a system prompt for whole texts, which are trained on as they are",
            do="remove it, or name answers to prompts by answerField",
            field=".systemPrompt",
            check=lambda self: violation_if(
                self.texts is not None and self.system_prompt is not None, self.system_prompt
            ),
        ),
        Rule(
            holds=f"self.chatTemplate != 'Always' || {_HAS_PROMPTS}",
            what="a chat template for whole texts, which are trained on as they are",
            do="remove it, or name answers to prompts by answerField",
            field=".chatTemplate",
            check=lambda self: violation_if(
                self.texts is not None and self.chat_template is ChatTemplate.ALWAYS,
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
        """The column with whole texts. None: rows are prompts with answers."""
        if self.answer_field is not None or self.builtin is not None:
            return None
        return self.text_field or "text"


class DataSpec(Contract):
    """Training and evaluation data."""

    train: TrainingData
    """Rows to train on."""
    pretraining: PretrainingData | None = None
    """Rows of their own that the algorithm trains on beside these, such as Safe-RLHF's ptx loss;
    a step gets them by flow.pretraining(). Default: none."""
    evaluation: EvaluationData | None = None
    """Held-out prompts. Default: none, but a builtin task brings its own where something scores
    what the policy answers."""
    shuffle: bool = True
    """Whether every epoch has an order of its own, derived from schedule.seed."""
    on_invalid_row: OnInvalidRow = OnInvalidRow.FAIL
    """What happens to a row whose prompt, or answer that is trained on, is missing, empty or not a
    text, or whose answer is too long: Fail or Skip."""
    on_long_prompt: OnLongPrompt = OnLongPrompt.FAIL
    """What happens to a prompt longer than rollout.maxPromptTokens: Fail or Skip."""
