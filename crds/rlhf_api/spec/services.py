"""Services that score responses: one of the user's own, or a language model as a judge."""

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
    Identifier,
    Text,
)
from rlhf_api.cel_literals import text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.judge_placeholders import RESPONSE_PLACEHOLDER, unknown_placeholders
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.algorithm import ParameterValue


class OnRewardError(StrEnum):
    """Reaction to a sample whose verifier raised an error, timed out or returned an invalid
    answer."""

    EXCLUDE = "Exclude"
    """The sample is marked, counted and excluded from training."""
    ZERO = "Zero"
    """The sample is marked, counted and scored 0."""
    FAIL = "Fail"
    """The job stops."""


# Headers that a request sets itself, in lower case.
_OWN_HEADERS = (
    *("connection", "content-encoding", "content-length", "content-type", "expect", "host"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
)

_OWN_HEADER_PATTERN = f"(?i)^({'|'.join(_OWN_HEADERS)})$"

# Weights of the parts of a reward.
RewardParts = Annotated[
    dict[Identifier, Annotated[float, Field(ge=-1e6, le=1e6)]], Field(max_length=32)
]

HeaderValue = Annotated[str, Field(max_length=4096, pattern=HEADER_VALUE_PATTERN)]
Url = Annotated[str, Field(min_length=8, max_length=1024, pattern=HTTP_URL_PATTERN)]


class HTTPHeader(Alternatives):
    """A header of every request: exactly one of value, valueFromEnv is set."""

    alternatives: ClassVar = ("value", "value_from_env")

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=HEADER_PATTERN)]
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
            holds=f"!self.name.matches({text(_OWN_HEADER_PATTERN)})",
            what="a header that a request sets itself",
            got="self.name",
            allowed="any other header",
            do="remove it",
            field=".name",
            check=lambda self: violation_if(self.name.lower() in _OWN_HEADERS, self.name),
        ),
    )


class Service(Contract):
    """Access to a service."""

    headers: Annotated[tuple[HTTPHeader, ...], Field(max_length=16)] = ()
    """Headers of every request, such as credentials."""
    use_proxy: bool = False
    """If true, requests use the proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name."""
    compress: bool = False
    """If true, requests are compressed by gzip. Compressed answers are always accepted."""
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Largest number of concurrent requests of the job. The nodes of the policy's pool divide it;
    each has at least one."""
    max_retries: Annotated[int, Field(ge=0, le=32)] = 3
    """Number of retries of a request that found no server, timed out, or got status 429 or 5xx;
    then its samples count as errors."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """Reaction to samples that could not be scored: Exclude, Zero or Fail."""

    validations: ClassVar[tuple[Rule, ...]] = (
        Rule(
            holds="self.headers.all(one, self.headers.exists_one(other, "
            "one.name.matches('(?i)^' + other.name + '$')))",
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


class HTTPReward(Service):
    """A service that scores batches of samples, sent as JSON."""

    url: Url
    """Address for POST requests with {"samples": [{"prompt", "response", "record", "finished"}],
    "parameters": {}}. The answer is {"scores": []}: one number for each sample, or null where the
    service abstains."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Sent with every batch."""
    parts: RewardParts = {}
    """Weights of named parts, as of a function: then the answer's scores are maps of numbers."""
    timeout_seconds: Count = 10
    """Longest time for one request, from connecting to the end of the answer."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 64
    """Samples per request."""


GradeBound = Annotated[float, Field(ge=-1e6, le=1e6)]


class JudgeScale(Contract):
    """The grades that a judge may give."""

    lowest: GradeBound = 0.0
    """The grade of reward 0."""
    highest: GradeBound = 10.0
    """The grade of reward 1."""

    validations: ClassVar = (
        Rule(
            holds="!has(self.lowest) || !has(self.highest) || self.lowest < self.highest",
            what="a scale without grades",
            allowed="lowest below highest",
            do="correct one of them",
            field=".highest",
            check=lambda self: violation_if(self.lowest >= self.highest, self.highest),
        ),
    )


class JudgeReward(Service):
    """A language model that grades each response, behind an API like OpenAI's. The reward is the
    grade's position on the scale, from 0 to 1."""

    url: Url
    """Base address of the API, such as http://judge:8000/v1; /chat/completions is added."""
    model: Text
    """Name of the model there."""
    prompt: Annotated[str, Field(min_length=1, max_length=16384)]
    """The question about a response. {prompt}, {response} and {record.NAME} stand for the prompt,
    the response and the entry NAME of the row; {{ and }} for braces. The answer must contain the
    grade as `Score: NUMBER`, as JSON with `score`, or alone; of several the last one counts."""
    system_prompt: Annotated[str, Field(max_length=16384)] = ""
    """A message of the system before it. Default: none."""
    scale: JudgeScale = JudgeScale()
    """The grades that it may give. Any other grade counts as an error."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Temperature of its sampling."""
    max_tokens: Count = 512
    """Limit of its answer's tokens, with those of its thoughts."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Further fields of every request, such as top_p. They replace the others: with
    max_completion_tokens a request has no max_tokens."""
    chat_template_arguments: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Variables of the judge's chat template, such as {enable_thinking: false}, sent as
    chat_template_kwargs. vLLM and SGLang know these. Default: none."""
    timeout_seconds: Count = 60
    """Longest time for one request, from connecting to the end of the answer."""

    validations: ClassVar = (
        *Service.validations,
        Rule(
            holds=f"self.prompt.contains('{RESPONSE_PLACEHOLDER}')",
            what="a question without the response",
            allowed=f"a text with {RESPONSE_PLACEHOLDER}",
            do="add it",
            field=".prompt",
            check=lambda self: violation_if(RESPONSE_PLACEHOLDER not in self.prompt),
        ),
        Rule(
            holds="",  # regular expressions of CEL cannot skip doubled braces
            what="an unknown placeholder",
            allowed="{prompt}, {response} and {record.NAME} with the name of a column",
            do="correct it, or double its braces",
            field=".prompt",
            check=lambda self: map(Violation, unknown_placeholders(self.prompt)),
        ),
    )
