"""Rewards of responses: a weighted sum of verifiers, services, judges and reward models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count, Entrypoint, Identifier, Text
from rlhf_api.cel_literals import texts
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, violation_if
from rlhf_api.spec.algorithm import ParameterValue
from rlhf_api.spec.models import (
    REVISION_RULE,
    ModelShape,
    ModelSource,
    ModelSpec,
    Precision,
    TrainingSpec,
)
from rlhf_api.spec.row_sources import SourceName
from rlhf_api.spec.services import HTTPReward, JudgeReward, OnRewardError, RewardParts

# Suffix of the role of a reward's model, after the reward's name.
MODEL_ROLE = "_model"

# Names of other metrics of a reward's role.
RESERVED_REWARDS = ("mean", "std", "kl", "multiplier")


class FunctionReward(Contract):
    """A Python verifier, called with batches of samples in separate processes."""

    entrypoint: Entrypoint
    """The function as `package.module:name`. It takes a list of rlhf_runtime.rewards.Sample
    (prompt, response, record) and the parameters, and returns one number for each, or None where
    it abstains."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the function as keyword arguments."""
    parts: RewardParts = {}
    """Weights of named parts, such as {format: 0.2, answer: 0.8}: then the function returns a map
    of numbers for each sample, and the score is their weighted sum. A part that is missing or None
    adds nothing. Each is a metric, reward/<name>/<part>. Default: it returns numbers."""
    timeout_seconds: Count = 10
    """Longest time for one batch. After it the process is stopped, and the batch's samples are
    scored again one by one; those that take longer alone count as errors."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 256
    """Samples per call."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of parallel processes on each node of the policy's pool."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """Reaction to samples that could not be scored: Exclude, Zero or Fail."""
    repeatable: bool = True
    """If false, the function may answer otherwise the second time, as one does that asks a language
    model. Its scores are then kept in the journal, and read when a step runs again. Scores of http
    and judge always are."""


class RewardTokenizer(StrEnum):
    """Tokenization of responses for a reward model."""

    POLICY = "Policy"
    """The sampled tokens. Its vocabulary must be the policy's."""
    OWN = "Own"
    """Its own tokens: prompts and responses are tokenized again, with its chat template if it has
    one."""


class ModelReward(Alternatives):
    """A reward model: a sequence classifier with one label, such as type RewardModel trains. It
    runs on the devices as role `<name>_model`."""

    alternatives: ClassVar = ("hugging_face", "path")

    hugging_face: Text | None = None
    """A Hugging Face model id, such as Skywork/Skywork-Reward-V2-Qwen3-0.6B."""
    revision: Text | None = None
    """Branch, tag or commit of the Hugging Face id. Default: its main branch."""
    path: Text | None = None
    """A folder with a model in Hugging Face format, as the workers see it. For `rlhf run` relative
    to the manifest's folder."""
    tokenizer: RewardTokenizer = RewardTokenizer.POLICY
    """Tokenization of responses: Policy or Own."""
    shape: ModelShape | None = None
    """The model's dimensions, for planning before its config.json can be read. Default: unknown."""
    precision: Precision = Precision.AUTO
    """Number format of the computation."""
    micro_batch_tokens: Count | None = None
    """Padded tokens of a micro-batch on a rank; a longer sequence runs alone. Default: 16384 on
    GPUs, 4096 on CPUs, or a half of that until everything fits, down to 1024."""

    validations: ClassVar = (REVISION_RULE,)

    @property
    def as_model(self) -> ModelSpec:
        """The reward model as the model of its role."""
        return ModelSpec(
            source=ModelSource(
                hugging_face=self.hugging_face, revision=self.revision, path=self.path
            ),
            shape=self.shape,
            training=TrainingSpec(
                precision=self.precision, micro_batch_tokens=self.micro_batch_tokens
            ),
        )


class EnvironmentReward(Contract):
    """The reward that rollout.environment returns for a conversation."""

    parts: RewardParts = {}
    """Weights of named parts: then its method reward returns a map of numbers, and the score is
    their weighted sum. A part that is missing or None adds nothing. Each is a metric,
    reward/<name>/<part>. Default: it returns a number."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """Reaction to conversations without a reward: Exclude, Zero or Fail. Those that fail are left
    out by rollout.onStop in any case."""


class RowFilter(Contract):
    """Rows that have one of some values in a column."""

    field: Text
    """The column; a dotted name goes into maps."""
    values: Annotated[
        tuple[Annotated[str, Field(max_length=1024)], ...], Field(min_length=1, max_length=64)
    ]
    """The values, as texts: numbers as JSON writes them, true and false."""


class RewardSpec(Alternatives):
    """One term of the reward."""

    alternatives: ClassVar = ("function", "http", "judge", "model", "environment")

    name: Identifier = "reward"
    """Its name in metrics; unique in the job."""
    role: Identifier = "reward"
    """Role of the algorithm that this term belongs to. A custom algorithm may have several, such as
    reward and cost."""
    weight: float = 1.0
    """Factor in the sum; negative for a penalty."""
    where: RowFilter | None = None
    """Rows to whose responses it applies; it abstains on all others. Default: all rows."""
    sources: Annotated[tuple[SourceName, ...], Field(max_length=16)] = ()
    """Names of the data sources to whose rows it applies. Default: all sources."""
    function: FunctionReward | None = None
    """A Python verifier that computes it."""
    http: HTTPReward | None = None
    """A service that computes it."""
    judge: JudgeReward | None = None
    """A language model that grades the response."""
    model: ModelReward | None = None
    """A reward model that computes it."""
    environment: EnvironmentReward | None = None
    """The reward of rollout.environment."""

    validations: ClassVar = (
        Rule(
            holds="!has(self.model) || !has(self.where) && self.sources.size() == 0",
            what="a reward model that applies to some rows only",
            allowed="where and sources beside function, http or judge",
            do="remove them",
            field=".model",
            check=lambda self: violation_if(self.model is not None and self.is_partial),
        ),
        Rule(
            holds=f"!(self.name in {texts(RESERVED_REWARDS)})",
            what="a name of another metric of the role",
            got="self.name",
            allowed="any other name",
            do="rename it",
            field=".name",
            check=lambda self: violation_if(self.name in RESERVED_REWARDS, self.name),
        ),
    )

    @property
    def is_partial(self) -> bool:
        """True if it may not apply to all rows."""
        return self.where is not None or bool(self.sources)

    @property
    def on_error(self) -> OnRewardError:
        """Reaction to samples that a function or a service could not score."""
        assert self.scorer is not None, "a model scores all samples"
        return self.scorer.on_error

    @property
    def service(self) -> HTTPReward | JudgeReward | None:
        """The service that computes it; None for a function and a reward model."""
        return self.http or self.judge

    @property
    def scorer(self) -> FunctionReward | HTTPReward | JudgeReward | EnvironmentReward | None:
        """The function, service or environment that computes it; None for a reward model."""
        return self.function or self.service or self.environment

    @property
    def may_change(self) -> bool:
        """True if it may answer otherwise when it is asked again."""
        return (
            self.service is not None or self.function is not None and not self.function.repeatable
        )

    def with_settings(self, **settings: Any) -> RewardSpec:
        """Return a copy with other settings of its function or service, by their Python names."""
        assert self.scorer is not None, "a model has no such settings"
        return self.model_copy(update={self.chosen: self.scorer.model_copy(update=settings)})

    @property
    def model_role(self) -> str:
        """Role of its reward model, if it has one."""
        return f"{self.name}{MODEL_ROLE}"
