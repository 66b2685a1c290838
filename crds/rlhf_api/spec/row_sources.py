"""Sources of rows: files, data sets and generated tasks, one or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from rlhf_api.base import JOB_NAME_PATTERN, Contract, Count, Identifier, Text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.algorithm import ParameterValue

TEMPLATE_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of chat templates that a conversation itself sets, beside the special tokens."""


class BuiltinData(StrEnum):
    """Generated tasks."""

    SORT_DIGITS = "SortDigits"
    """Sort six random digits: the answer to `402991=` is `012499`. Training and evaluation data
    never overlap."""
    CALCULATIONS = "Calculations"
    """Calculate with three numbers: `(47+83)*29=` -> `3770`. The column conversation has calls
    of tools; most end too early."""


class TemplateUse(StrEnum):
    """Use of the tokenizer's chat template for prompts."""

    AUTO = "Auto"
    """Use it if the prompt field contains messages, or the tokenizer has a chat template."""
    ALWAYS = "Always"
    """Use it; a text becomes one user message."""
    NEVER = "Never"
    """Do not use it; the prompt field contains the text that the model continues."""


class TrainOn(StrEnum):
    """Answers of a conversation that are trained on."""

    LAST_ANSWER = "LastAnswer"
    """The last message of the assistant; all before it is the prompt."""
    ALL_ANSWERS = "AllAnswers"
    """All messages of the assistant, with calls of tools and end tokens; those between them are
    context."""


TemplateArguments = Annotated[dict[Identifier, ParameterValue], Field(max_length=64)]
SystemPrompt = Annotated[str, Field(max_length=16384)]
# Letters first: the number of a source is its name if it has none.
SourceName = Annotated[str, Field(min_length=1, max_length=40, pattern=JOB_NAME_PATTERN)]
_FILE_SUFFIXES = (".parquet", ".jsonl", ".json")


# A value of a generator's setting: a boolean, a number, a short text, or a list of these.
GeneratorParameter = ParameterValue | Annotated[tuple[ParameterValue, ...], Field(max_length=64)]
# Fields beside `parameters`, under reasoning_gym's names.
_GENERATOR_FIELDS = ("seed", "size")


def _repeated_fields(source: ReasoningGymData) -> Iterator[Violation]:
    for name in _GENERATOR_FIELDS:
        if name in source.parameters:
            yield Violation(name, ("parameters", name))


class ReasoningGymData(Contract):
    """Rows that a generator of the package reasoning-gym makes: each has prompt, question (the same
    text), answer, metadata and parameters."""

    dataset: Identifier
    """Name of the generator, such as chain_sum."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    """Seed of the first row; most generators make row i from seed + i. So two sources have no
    common rows if their seeds differ by size or more. Default: 0; for evaluation 1000000000."""
    size: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Number of rows."""
    parameters: Annotated[dict[Identifier, GeneratorParameter], Field(max_length=64)] = {}
    """Settings of the generator, such as `min_terms: 2`. Default: its own."""

    validations: ClassVar[tuple[Rule, ...]] = (
        Rule(
            holds="",  # CEL does not see maps of untyped values
            what="a parameter that has a field of its own",
            allowed="the generator's other settings",
            do="write it beside parameters",
            field=".parameters",
            check=_repeated_fields,
        ),
    )


def is_template_variable(name: str) -> bool:
    """True if rendering sets this variable of chat templates itself."""
    return name in TEMPLATE_VARIABLES or name.endswith("_token")


def _own_variables(source: DataSource | NamedSource) -> Iterator[Violation]:
    for name in filter(is_template_variable, source.chat_template_arguments or {}):
        yield Violation(name, ("chatTemplateArguments", name))


_NO_OWN_VARIABLE = Rule(
    holds="",  # CEL does not see maps of untyped values
    what="a variable of chat templates that rendering sets itself",
    allowed="other names, such as enable_thinking",
    do="remove it",
    field=".chatTemplateArguments",
    check=_own_variables,
)


class RowSource(Alternatives):
    """Rows: exactly one of path, paths, huggingFace, builtin, reasoningGym."""

    alternatives: ClassVar[tuple[str, ...]] = (
        *("path", "paths", "hugging_face", "builtin", "reasoning_gym"),
    )

    path: Text | None = None
    """A .parquet, .jsonl or .json file as the workers see it, or a pattern such as data/*.parquet:
    all files that match, sorted by name, are read one after the other. Or a folder that
    Dataset.save_to_disk of Hugging Face's datasets wrote. For `rlhf run` relative to the manifest's
    folder."""
    # Not a list as another form of `path`: Kubernetes has no fields of two types whose rules it
    # could check.
    paths: Annotated[tuple[Text, ...], Field(min_length=1, max_length=256)] | None = None
    """Files, patterns and folders as in path, read one after the other in this order."""
    hugging_face: Text | None = None
    """A Hugging Face dataset id, such as openai/gsm8k."""
    builtin: BuiltinData | None = None
    """A generated task."""
    reasoning_gym: ReasoningGymData | None = None
    """Tasks that the package reasoning-gym generates. rlhf_runtime.rewards.reasoning_gym:score
    scores their answers."""
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
            holds="!has(self.split) || has(self.huggingFace) || has(self.paths) || "
            "has(self.path) && "
            f"!{list(_FILE_SUFFIXES)}.exists(suffix, self.path.endsWith(suffix))",
            what="split is for huggingFace data, and for folders of Dataset.save_to_disk",
            do="remove it",
            field=".split",
            check=lambda self: violation_if(
                self.split is not None
                and self.hugging_face is None
                and self.paths is None
                and (self.path is None or self.path.endswith(_FILE_SUFFIXES)),
                self.split,
            ),
        ),
    )

    @property
    def named_paths(self) -> Mapping[str, str]:
        """Paths of files and folders by the field that names them, such as `paths[1]`, in order."""
        if self.path is not None:
            return {"path": self.path}
        return {f"paths[{index}]": path for index, path in enumerate(self.paths or ())}

    @property
    def row_limit(self) -> int | None:
        """Maximum of rows; None: unknown."""
        size = None if self.reasoning_gym is None else self.reasoning_gym.size
        return min((limit for limit in (self.max_rows, size) if limit is not None), default=None)

    @property
    def is_generated(self) -> bool:
        """True if rows are made by a program, with prompts and answers."""
        return self.builtin is not None or self.reasoning_gym is not None


class DataSource(RowSource):
    """Rows with prompts."""

    prompt_field: Text = "prompt"
    """Column with the prompt: a text, or a list of {role, content} messages. a.b is the entry b of
    the map a."""
    answer_field: Text | None = None
    """Column with the reference answer, the target of a warm start and of steps that train on
    answers: a text, a number, a list of these, or one message of the assistant; with trainOn:
    AllAnswers also several messages that begin and end with one of the assistant, such as calls of
    tools and their answers. The column of promptField: the last message of its conversation.
    Default: answer, but only for a warm start, builtin and reasoningGym data."""
    system_prompt: SystemPrompt | None = None
    """System message before every prompt. Default: none."""
    chat_template: TemplateUse = TemplateUse.AUTO
    """Use of the tokenizer's chat template for prompts."""
    chat_template_arguments: TemplateArguments = {}
    """Further variables of the chat template, such as `enable_thinking: false`."""
    chat_template_arguments_field: Text | None = None
    """Column with a map of further variables of the chat template for this row. Default: none."""

    validations: ClassVar[tuple[Rule, ...]] = (
        *RowSource.validations,
        _NO_OWN_VARIABLE,
        Rule(
            # CEL does not see maps of untyped values; Python checks chatTemplateArguments, too.
            holds="self.chatTemplate != 'Never' || !has(self.chatTemplateArgumentsField)",
            what="arguments of a chat template that is not used",
            do="remove them, or chatTemplate: Never",
            field=".chatTemplateArgumentsField",
            check=lambda self: _unused_arguments(self),
        ),
    )


def _unused_arguments(source: DataSource) -> Iterator[Violation]:
    if source.chat_template is TemplateUse.NEVER:
        if source.chat_template_arguments_field is not None:
            yield Violation(source.chat_template_arguments_field)
        for name in source.chat_template_arguments:
            yield Violation(name, ("chatTemplateArguments", name))


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
    chat_template: TemplateUse | None = None
    """Use of the tokenizer's chat template for prompts. Default: that beside sources."""
    chat_template_arguments: TemplateArguments | None = None
    """Further variables of the chat template. Default: those beside sources."""
    chat_template_arguments_field: Text | None = None
    """Column with a map of further variables of the chat template. Default: that beside sources."""

    validations: ClassVar[tuple[Rule, ...]] = (*RowSource.validations, _NO_OWN_VARIABLE)


class WeightedSource(NamedSource):
    """One of several sources to train on."""

    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Its share of every step's prompts, relative to the weights of the others."""
    train_on: TrainOn | None = None
    """Answers of a conversation to train on. Default: that beside sources."""


# Fields of one of several sources that have no counterpart beside `sources`.
_OWN_FIELDS = frozenset({*RowSource.model_fields, "name", "weight"})
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType(
    {"chat_template_arguments": {}, "chat_template_arguments_field": None, "system_prompt": None}
)


class MixedData(DataSource):
    """Rows with prompts: exactly one of path, paths, huggingFace, builtin, reasoningGym,
    sources."""

    alternatives: ClassVar = (*RowSource.alternatives, "sources")

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
        limits = [part.row_limit for part in self.parts]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    @property
    def has_answers(self) -> bool:
        """True if rows have reference answers."""
        return all(part.answer_field is not None or part.is_generated for part in self.parts)

    def _part(self, source: NamedSource) -> Self:
        rows = {name: getattr(source, name) for name in RowSource.model_fields}
        shared = type(source).model_fields.keys() - _OWN_FIELDS
        fields = {name: getattr(source, name) for name in shared}
        own = {name: value for name, value in fields.items() if value is not None}
        # A source without the template leaves the arguments beside `sources` to the others.
        unused = _NO_ARGUMENTS if source.chat_template is TemplateUse.NEVER else {}
        return self.model_copy(update={**rows, **unused, **own, "sources": None})


def _repeated_names(data: MixedData) -> Iterator[Violation]:
    names = [source.name for source in data.sources or ()]
    for index, name in enumerate(names):
        if name is not None and name in names[:index]:
            yield Violation(name, ("sources", index, "name"))
