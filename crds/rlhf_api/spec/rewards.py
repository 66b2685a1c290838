"""Rewards of responses: a weighted sum of verifiers, services and reward models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import (
    HEADER_PATTERN,
    HEADER_VALUE_PATTERN,
    HTTP_URL_PATTERN,
    IDENTIFIER_PATTERN,
    Contract,
    Count,
    Entrypoint,
    Identifier,
    Text,
)
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

# Suffix of the role of a reward's model, after the reward's name.
MODEL_ROLE = "_model"

# Names of other metrics of a reward's role.
RESERVED_REWARDS = ("mean", "std", "kl", "multiplier")


class OnRewardError(StrEnum):
    """Reaction to a sample whose verifier raised an error, timed out or returned an invalid
    answer."""

    EXCLUDE = "Exclude"
    """The sample is marked, counted and excluded from training."""
    ZERO = "Zero"
    """The sample is marked, counted and scored 0."""
    FAIL = "Fail"
    """The job stops."""


class FunctionReward(Contract):
    """A Python verifier, called with batches of samples in separate processes."""

    entrypoint: Entrypoint
    """The function as `package.module:name`. It takes a list of rlhf_runtime.rewards.Sample
    (prompt, response, record) and the parameters, and returns one number for each, or None where
    it abstains."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the function as keyword arguments."""
    timeout_seconds: Count = 10
    """Longest time for one batch. After it the process is stopped, and the batch's samples are
    scored again one by one; those that take longer alone count as errors."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 256
    """Samples per call."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of parallel processes on each node of the policy's pool."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """Reaction to samples that could not be scored: Exclude, Zero or Fail."""


# Headers that a request sets itself, in lower case.
_OWN_HEADERS = ("connection", "content-encoding", "content-length", "content-type", "host")

HeaderValue = Annotated[str, Field(max_length=4096, pattern=HEADER_VALUE_PATTERN)]


class HTTPHeader(Alternatives):
    """A header of every request: exactly one of value, valueFromEnv is set."""

    alternatives: ClassVar = ("value", "value_from_env")

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=HEADER_PATTERN)]
    """Its name, such as Authorization."""
    value: HeaderValue | None = None
    """Its value. Everyone who can read the job can read it."""
    value_from_env: Annotated[str, Field(pattern=IDENTIFIER_PATTERN, max_length=256)] | None = None
    """An environment variable with its value; on a cluster one of spec.env, such as from a Secret.
    Spaces and line ends around the value are removed."""
    prefix: HeaderValue = ""
    """Text before the value, such as "Bearer "."""

    validations: ClassVar = (
        Rule(
            holds=f"!(self.name.lowerAscii() in {texts(_OWN_HEADERS)})",
            what="a header that a request sets itself",
            got="self.name",
            allowed="any other header",
            do="remove it",
            field=".name",
            check=lambda self: violation_if(self.name.lower() in _OWN_HEADERS, self.name),
        ),
    )


class HTTPReward(Contract):
    """A service that scores batches of samples, sent as JSON."""

    url: Annotated[str, Field(min_length=8, max_length=1024, pattern=HTTP_URL_PATTERN)]
    """Address for POST requests with {"samples": [{"prompt", "response", "record", "finished"}],
    "parameters": {}}. The answer is {"scores": []}: one number for each sample, or null where the
    service abstains."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Sent with every batch."""
    headers: Annotated[tuple[HTTPHeader, ...], Field(max_length=16)] = ()
    """Headers of every request, such as credentials."""
    use_proxy: bool = False
    """If true, requests use the proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name."""
    compress: bool = False
    """If true, requests are compressed by gzip. Compressed answers are always accepted."""
    timeout_seconds: Count = 10
    """Longest time for one request, from connecting to the end of the answer."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 64
    """Samples per request."""
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Largest number of concurrent requests of the job. The nodes of the policy's pool divide it;
    each has at least one."""
    max_retries: Annotated[int, Field(ge=0, le=32)] = 3
    """Number of retries of a request that found no server, timed out, or got status 429 or 5xx;
    then its samples count as errors."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """Reaction to samples that could not be scored: Exclude, Zero or Fail."""

    validations: ClassVar = (
        Rule(
            holds="self.headers.all(one, self.headers.exists_one(other, "
            "one.name.lowerAscii() == other.name.lowerAscii()))",
            what="two headers of one name",
            allowed="every name once, whether in upper or in lower case",
            do="remove one",
            field=".headers",
            check=lambda self: violation_if(
                len({header.name.lower() for header in self.headers}) < len(self.headers)
            ),
        ),
    )

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables with values of headers."""
        return tuple(
            header.value_from_env for header in self.headers if header.value_from_env is not None
        )


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


class RewardSpec(Alternatives):
    """One term of the reward."""

    alternatives: ClassVar = ("function", "http", "model")

    name: Identifier = "reward"
    """Its name in metrics; unique in the job."""
    role: Identifier = "reward"
    """Role of the algorithm that this term belongs to. A custom algorithm may have several, such as
    reward and cost."""
    weight: float = 1.0
    """Factor in the sum; negative for a penalty."""
    function: FunctionReward | None = None
    """A Python verifier that computes it."""
    http: HTTPReward | None = None
    """A service that computes it."""
    model: ModelReward | None = None
    """A reward model that computes it."""

    validations: ClassVar = (
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
    def on_error(self) -> OnRewardError:
        """Reaction to samples that a function or a service could not score."""
        source = self.function or self.http
        assert source is not None, "a model scores all samples"
        return source.on_error

    @property
    def model_role(self) -> str:
        """Role of its reward model, if it has one."""
        return f"{self.name}{MODEL_ROLE}"
