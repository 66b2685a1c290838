"""What a response is worth: a weighted sum of what verifiers, services and reward models say."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import HTTP_URL_PATTERN, Contract, Count, Entrypoint, Identifier, Text
from rlhf_api.cel import texts
from rlhf_api.exclusive import Alternatives
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

MODEL_ROLE = "_model"
"""What the role of a reward's model is called, behind the reward's name."""

RESERVED_REWARDS = ("mean", "std", "kl", "multiplier")
"""Names that other metrics of a reward's role have."""


class OnRewardError(StrEnum):
    """What happens to a sample whose verifier raised, timed out or answered nonsense."""

    EXCLUDE = "Exclude"
    """It is marked, counted and left out of training."""
    ZERO = "Zero"
    """It is marked, counted and scored 0."""
    FAIL = "Fail"
    """The job stops."""


class FunctionReward(Contract):
    """A Python verifier, called with batches of samples in processes of its own."""

    entrypoint: Entrypoint
    """The function as `package.module:name`. It takes a list of rlhf_runtime.rewards.Sample
    (prompt, response, record) and the parameters, and returns one number for each."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the function as keyword arguments."""
    timeout_seconds: Count = 10
    """Longest time for one batch; then it is stopped and its samples count as errors."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 256
    """Samples per call."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that score side by side, on each node of the policy's pool."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """What happens to samples that could not be scored: Exclude, Zero or Fail."""


class HTTPReward(Contract):
    """A service that scores: batches of samples are sent to it as JSON."""

    url: Annotated[str, Field(min_length=8, max_length=1024, pattern=HTTP_URL_PATTERN)]
    """Where batches are sent, with POST: {"samples": [{"prompt", "response", "record",
    "finished"}], "parameters": {}}. The answer is {"scores": []}, one number for each sample, or
    null for one that it cannot score."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Sent with every batch."""
    timeout_seconds: Count = 10
    """Longest time for one request, from connecting to the end of the answer."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 64
    """Samples per request."""
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Requests of the job under way at once. The nodes of the policy's pool divide them; each has
    at least one."""
    max_retries: Annotated[int, Field(ge=0, le=32)] = 3
    """How often a request is sent again that met no server, took too long, or was answered with
    429 or 5xx; then its samples count as errors."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """What happens to samples that could not be scored: Exclude, Zero or Fail."""


class RewardTokenizer(StrEnum):
    """In which tokens a reward model reads a response."""

    POLICY = "Policy"
    """In those that were sampled: its vocabulary has to be the policy's."""
    OWN = "Own"
    """In its own: prompts and responses are tokenized anew, by its chat template if it has one."""


class ModelReward(Alternatives):
    """A reward model: a sequence classifier of one label, as type RewardModel makes them. It
    computes on the devices, as role `<name>_model`."""

    alternatives: ClassVar = ("hugging_face", "path")

    hugging_face: Text | None = None
    """A Hugging Face model id, such as Skywork/Skywork-Reward-V2-Qwen3-0.6B."""
    revision: Text | None = None
    """Branch, tag or commit of the Hugging Face id. Default: its main branch."""
    path: Text | None = None
    """A folder with a model in Hugging Face format, as the workers see it. For `rlhf run` relative
    to the manifest's folder."""
    tokenizer: RewardTokenizer = RewardTokenizer.POLICY
    """In which tokens it reads a response: Policy or Own."""
    shape: ModelShape | None = None
    """The model's dimensions, for planning before its config.json can be read. Default: unknown."""
    precision: Precision = Precision.AUTO
    """Number format of the computation."""
    micro_batch_tokens: Count | None = None
    """Padded tokens that a rank runs at once; a longer sequence runs alone. Default: 16384 on GPUs,
    4096 on CPUs, or that halved until everything fits, down to 1024."""

    validations: ClassVar = (REVISION_RULE,)

    @property
    def as_model(self) -> ModelSpec:
        """It as a role's model."""
        return ModelSpec(
            source=ModelSource(
                hugging_face=self.hugging_face, revision=self.revision, path=self.path
            ),
            shape=self.shape,
            training=TrainingSpec(
                precision=self.precision, micro_batch_tokens=self.micro_batch_tokens
            ),
        )


class RewardSpec(Alternatives):
    """One term of the reward."""

    alternatives: ClassVar = ("function", "http", "model")

    name: Identifier = "reward"
    """Its name in metrics; unique in the job."""
    role: Identifier = "reward"
    """The algorithm's role that it is a term of; a custom algorithm may have several, such as a
    reward and a cost."""
    weight: float = 1.0
    """Factor in the sum; below 0 for a penalty."""
    function: FunctionReward | None = None
    """A Python verifier that computes it."""
    http: HTTPReward | None = None
    """A service that computes it."""
    model: ModelReward | None = None
    """A reward model that computes it."""

    validations: ClassVar = (
        Rule(
            holds=f"!(self.name in {texts(RESERVED_REWARDS)})",
            what="the role's own metrics have such names",
            got="self.name",
            allowed="any other name",
            do="rename it",
            field=".name",
            check=lambda self: violation_if(self.name in RESERVED_REWARDS, self.name),
        ),
    )

    @property
    def on_error(self) -> OnRewardError:
        """What happens to samples that a function or a service could not score."""
        given = self.function or self.http
        assert given is not None, "a model scores all"
        return given.on_error

    @property
    def model_role(self) -> str:
        """The role of its model, where it has one."""
        return f"{self.name}{MODEL_ROLE}"
