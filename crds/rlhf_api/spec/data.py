"""Data of a job: sources of rows, and their conversion to prompts and answers."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field
from pydantic.alias_generators import to_snake

from rlhf_api.base import JOB_NAME_PATTERN, Contract, Count, Text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, Violation, violation_if


class BuiltinData(StrEnum):
    """Generated tasks."""

    SORT_DIGITS = "SortDigits"
    """Sort six random digits: the answer to `402991=` is `012499`. Training and evaluation data
    never overlap."""


class ChatTemplate(StrEnum):
    """Use of the tokenizer's chat template for prompts."""

    AUTO = "Auto"
    """Use it if the prompt field contains messages, or the tokenizer has a chat template."""
    ALWAYS = "Always"
    """Use it; a text becomes one user message."""
    NEVER = "Never"
    """Do not use it; the prompt field contains the text that the model continues."""


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


SystemPrompt = Annotated[str, Field(max_length=16384)]
# Letters first: the number of a source is its name if it has none.
SourceName = Annotated[str, Field(min_length=1, max_length=40, pattern=JOB_NAME_PATTERN)]
_FILE_SUFFIXES = (".parquet", ".jsonl", ".json")
_HAS_PROMPTS = "has(self.answerField) || has(self.builtin)"


class RowSource(Alternatives):
    """Rows: exactly one of path, huggingFace, builtin."""

    alternatives: ClassVar[tuple[str, ...]] = ("path", "hugging_face", "builtin")

    path: Text | None = None
    """A .parquet, .jsonl or .json file as the workers see it, or a pattern such as data/*.parquet:
    all files that match, sorted by name, are read one after the other. Or a folder that
    Dataset.save_to_disk of Hugging Face's datasets wrote. For `rlhf run` relative to the manifest's
    folder."""
    hugging_face: Text | None = None
    """A Hugging Face dataset id, such as openai/gsm8k."""
    builtin: BuiltinData | None = None
    """A generated task."""
    configuration: Text | None = None
    """Configuration of a Hugging Face dataset, such as main. Default: its only one."""
    split: Text | None = None
    """Split of a Hugging Face dataset, or of a folder with several. Default: train; for evaluation
    test."""
    max_rows: Count | None = None
    """Number of rows to use, from the first. Default: all."""

    validations: ClassVar[tuple[Rule, ...]] = (
        Rule(
            holds="!has(self.configuration) || has(self.huggingFace)",
            what="configuration is for huggingFace data only",
            do="remove it",
            field=".configuration",
            check=lambda self: violation_if(
                self.configuration is not None and self.hugging_face is None, self.configuration
            ),
        ),
        Rule(
            holds="!has(self.split) || has(self.huggingFace) || has(self.path) && "
            f"!{list(_FILE_SUFFIXES)}.exists(suffix, self.path.endsWith(suffix))",
            what="split is for huggingFace data, and for folders of Dataset.save_to_disk",
            do="remove it",
            field=".split",
            check=lambda self: violation_if(
                self.split is not None
                and self.hugging_face is None
                and (self.path is None or self.path.endswith(_FILE_SUFFIXES)),
                self.split,
            ),
        ),
    )


class DataSource(RowSource):
    """Rows with prompts."""

    prompt_field: Text = "prompt"
    """Column with the prompt: a text, or a list of {role, content} messages. a.b is the entry b of
    the map a."""
    answer_field: Text | None = None
    """Column with the reference answer, the target of a warm start and of steps that train on
    answers: a text, a number, a list of these, or one message of the assistant. The column of
    promptField: the last message of its conversation. Default: answer, but only for a warm start
    and builtin data."""
    system_prompt: SystemPrompt | None = None
    """System message before every prompt. Default: none."""
    chat_template: ChatTemplate = ChatTemplate.AUTO
    """Use of the tokenizer's chat template for prompts."""


class NamedSource(RowSource):
    """One of several sources."""

    name: SourceName | None = None
    """Its name in metrics and for verifiers; unique among the sources. Default: its number, from
    0."""
    prompt_field: Text | None = None
    """Column with the prompt. Default: that beside sources."""
    answer_field: Text | None = None
    """Column with the reference answer. Default: that beside sources."""
    system_prompt: SystemPrompt | None = None
    """System message before every prompt. Default: that beside sources."""
    chat_template: ChatTemplate | None = None
    """Use of the tokenizer's chat template for prompts. Default: that beside sources."""


class WeightedSource(NamedSource):
    """One of several sources to train on."""

    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Its share of every step's prompts, relative to the weights of the others."""


class MixedData(DataSource):
    """Rows with prompts: exactly one of path, huggingFace, builtin, sources."""

    alternatives: ClassVar = ("path", "hugging_face", "builtin", "sources")

    sources: tuple[NamedSource, ...] | None = None
    """Several sources."""

    validations: ClassVar[tuple[Rule, ...]] = (
        *DataSource.validations,
        Rule(
            holds="!has(self.sources) || !has(self.maxRows)",
            what="a number of rows beside sources, of which each has its own",
            do="set maxRows in the sources",
            field=".maxRows",
            check=lambda self: violation_if(
                self.sources is not None and self.max_rows is not None, self.max_rows
            ),
        ),
        Rule(
            holds="!has(self.sources) || self.sources.filter(source, has(source.name))"
            ".all(source, self.sources.filter(other, has(other.name) && "
            "other.name == source.name).size() == 1)",
            what="several sources have the same name",
            do="rename one of them",
            field=".sources",
            check=lambda self: _repeated_names(self),
        ),
    )

    @property
    def parts(self) -> tuple[Self, ...]:
        """Each source as the only one; this one, if it is."""
        if self.sources is None:
            return (self,)
        return tuple(map(self._part, self.sources))

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources; empty if there are no several."""
        return tuple(source.name or str(index) for index, source in enumerate(self.sources or ()))

    @property
    def most_rows(self) -> int | None:
        """Maximum of rows of all sources; None: unknown."""
        limits = [part.max_rows for part in self.parts]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    @property
    def has_answers(self) -> bool:
        """True if every row has a reference answer."""
        return all(part.answer_field is not None or part.builtin is not None for part in self.parts)

    def _part(self, source: NamedSource) -> Self:
        own = {name: getattr(source, name) for name in RowSource.model_fields}
        prompts = ("prompt_field", "answer_field", "system_prompt", "chat_template")
        given = {name: getattr(source, name) for name in prompts}
        own |= {name: value for name, value in given.items() if value is not None}
        return self.model_copy(update={**own, "sources": None})


def _repeated_names(data: MixedData) -> Iterator[Violation]:
    names = [source.name for source in data.sources or ()]
    for index, name in enumerate(names):
        if name is not None and name in names[:index]:
            yield Violation(name, ("sources", index, "name"))


class PreferenceFields(Contract):
    """Columns with the two responses of a pair: texts, or lists of {role, content} messages.
    Messages that both lists begin with become the prompt, or its continuation."""

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
    `{}` uses the default column names, which builtin data also have. Default: rows are not
    pairs."""

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
    )


class PretrainingData(DataSource):
    """Rows for an additional loss, on complete texts or on answers to prompts."""

    text_field: Text | None = None
    """Column with texts; every token is trained on. Text beyond rollout.maxPromptTokens +
    rollout.maxResponseTokens is cut off. Default: text, unless answerField is set; builtin data are
    prompts with answers."""
    rows_per_step: Count | None = None
    """Rows of each step. Default: schedule.promptsPerStep."""

    validations: ClassVar = (
        *DataSource.validations,
        _exclusive_with_text_field("answerField"),
        _exclusive_with_text_field("builtin"),
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
        """Column with complete texts. None: rows are prompts with answers."""
        # Rules exclude textField in these cases.
        if self.answer_field is not None or self.builtin is not None:
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
