"""Generation of responses."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count
from rlhf_api.cel_literals import text
from rlhf_api.quantity import Quantity
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.conversation import EnvironmentSpec
from rlhf_api.spec.stopping import CONVERSATION_REASONS, TRAIN_ON_ALL, OnStop, StopAction
from rlhf_api.spec.truncation import MinP, TopK, TopP, Truncation

MAX_STOP_TEXTS = 8
MAX_STOP_CHARACTERS = 64


class GenerationEngineType(StrEnum):
    """Engine that generates."""

    VLLM = "VLLM"
    """vLLM, in the training processes."""


class StageFusionType(StrEnum):
    """Overlap of generation with later stages of a step."""

    AUTO = "Auto"
    """Overlap if the plan expects shorter steps."""
    ALWAYS = "Always"
    """Always overlap, for example on devices with unknown times. A job without stages that can
    overlap is refused."""
    NEVER = "Never"
    """No overlap: all responses end before calls that read them begin."""


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class GenerationParallelism(Contract):
    """Parallelism of the actor for generation. The planner chooses fields that are not set."""

    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks that split each layer. Default: the planner's choice."""


def _threshold_needs_fusion(spec: RolloutSpec) -> list[Violation]:
    is_unused = spec.stage_fusion is not StageFusionType.ALWAYS
    has_threshold = spec.stage_fusion_threshold is not None
    return violation_if(has_threshold and is_unused, spec.stage_fusion.value)


def _stop_text_can_end(spec: RolloutSpec) -> list[Violation]:
    action = spec.on_stop.stop_text
    return violation_if(action is not StopAction.TRAIN and not spec.stop, action.value)


def _some_response_is_left_out(spec: RolloutSpec) -> list[Violation]:
    is_set = spec.min_valid_samples is not None
    return violation_if(is_set and not spec.stop_actions.has(StopAction.LEAVE_OUT))


def _prompts_have_enough_samples(spec: RolloutSpec) -> list[Violation]:
    fewest, samples = spec.min_valid_samples, spec.samples_per_prompt
    is_more = fewest is not None and fewest > samples
    return violation_if(is_more, fewest, f"at most samplesPerPrompt, {samples}")


def _conversations_can_end(spec: RolloutSpec) -> list[Violation]:
    actions = map(spec.on_stop.written_action, CONVERSATION_REASONS)
    has_any = any(action is not None for action in actions)
    return violation_if(spec.environment is None and has_any)


def _some_response_is_trained_on(spec: RolloutSpec) -> list[Violation]:
    on_stop = spec.on_stop
    actions = [on_stop.end_token, on_stop.token_limit, on_stop.context_limit]
    if spec.stop:
        actions.append(on_stop.stop_text)
    return violation_if(StopAction.TRAIN not in actions, on_stop.end_token.value)


def _truncated_share_fits_mean(spec: RolloutSpec) -> list[Violation]:
    share, limit = spec.expected_truncated, spec.max_response_tokens
    mean = spec.expected_response_tokens or limit / 2
    is_more = share is not None and share * limit >= mean and mean < limit
    return violation_if(is_more, share, f"less than the mean length / {limit}")


_TRAIN = text(StopAction.TRAIN)
_LEAVE_OUT = text(StopAction.LEAVE_OUT)
_ALWAYS_TREATED = ("EndToken", "StopText", "TokenLimit")


class RolloutSpec(Contract):
    """Generation and sampling.

    If sampling is truncated (topP, topK, minP), log-probabilities of sampled responses are those of
    the truncated distribution at this temperature, in generation and in training: the engine
    records the tokens that it kept for each sampled token.
    """

    validations: ClassVar = (
        Rule(
            holds=f"!has(self.onStop) || self.onStop.StopText == {_TRAIN} || size(self.stop) > 0",
            what="a treatment of responses that end with a stop text, and there is no such text",
            got="self.onStop.StopText",
            allowed="Train without stop",
            do="list the texts in stop, or remove StopText",
            field=".onStop.StopText",
            check=_stop_text_can_end,
        ),
        Rule(
            holds=f"!has(self.onStop) || self.onStop.EndToken == {_TRAIN} || "
            f"self.onStop.TokenLimit == {_TRAIN} || "
            f"has(self.onStop.ContextLimit) && self.onStop.ContextLimit == {_TRAIN} || "
            f"size(self.stop) > 0 && self.onStop.StopText == {_TRAIN}",
            what="responses are trained on for none of the reasons for which they end",
            got="self.onStop.EndToken",
            allowed="Train for one reason at least",
            do="write EndToken: Train",
            field=".onStop.EndToken",
            check=_some_response_is_trained_on,
        ),
        Rule(
            holds="!has(self.minValidSamples) || has(self.environment) || has(self.onStop) && ("
            + " || ".join(f"self.onStop.{name} == {_LEAVE_OUT}" for name in _ALWAYS_TREATED)
            + f" || has(self.onStop.ContextLimit) && self.onStop.ContextLimit == {_LEAVE_OUT})",
            what="a fewest number of samples, and none is ever left out",
            allowed="minValidSamples with LeaveOut in onStop",
            do="remove it",
            field=".minValidSamples",
            check=_some_response_is_left_out,
        ),
        Rule(
            holds="!has(self.minValidSamples) || self.minValidSamples <= self.samplesPerPrompt",
            what="more samples than a prompt has",
            allowed="at most samplesPerPrompt",
            do="lower it",
            field=".minValidSamples",
            check=_prompts_have_enough_samples,
        ),
        Rule(
            holds="has(self.environment) || !has(self.onStop) || !("
            + " || ".join(f"has(self.onStop.{reason.value})" for reason in CONVERSATION_REASONS)
            + ")",
            what="a treatment of conversations, and there is no environment",
            allowed="the treatment of other reasons",
            do="remove it, or write environment",
            field=".onStop",
            check=_conversations_can_end,
        ),
        Rule(
            holds="!has(self.environment) && !has(self.minValidSamples) || "
            f"self.stageFusion != {text(StageFusionType.ALWAYS)}",
            what="a forced stage fusion, and responses that must stay on their engine",
            got="self.stageFusion",
            allowed="Auto or Never with environment or minValidSamples",
            do="write stageFusion: Never",
            field=".stageFusion",
            check=lambda spec: violation_if(
                not spec.may_migrate_responses and spec.stage_fusion is StageFusionType.ALWAYS,
                spec.stage_fusion.value,
            ),
        ),
        Rule(
            holds="!has(self.expectedTruncated) || "
            "(has(self.expectedResponseTokens) ? "
            "self.expectedResponseTokens == self.maxResponseTokens || "
            "self.expectedTruncated * double(self.maxResponseTokens) < "
            "double(self.expectedResponseTokens) : self.expectedTruncated < 0.5)",
            what="the responses that are cut off alone exceed the mean length",
            allowed="less than the mean length / maxResponseTokens",
            do="lower it or raise expectedResponseTokens",
            field=".expectedTruncated",
            check=_truncated_share_fits_mean,
        ),
        Rule(
            holds="!has(self.stageFusionThreshold) || "
            f"self.stageFusion == {text(StageFusionType.ALWAYS)}",
            what="a threshold of a stage fusion that is not certain",
            got="self.stageFusion",
            allowed="Always with stageFusionThreshold",
            do="write stageFusion: Always, or remove the threshold",
            field=".stageFusionThreshold",
            check=_threshold_needs_fusion,
        ),
    )

    engine: GenerationEngineType = GenerationEngineType.VLLM
    """Engine that generates."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Responses sampled for every prompt: the group size of GRPO."""
    max_prompt_tokens: Count = 1024
    """Longest prompt; data.onLongPrompt says what happens to longer ones."""
    max_response_tokens: Count = 1024
    """Longest response; a longer one is cut off here."""
    stop: Annotated[tuple[StopText, ...], Field(max_length=MAX_STOP_TEXTS)] = ()
    """Texts that end a response, such as </answer>. Tokens of the text stay in the response; a
    token that goes beyond the text is dropped. Default: none."""
    end_tokens: Annotated[tuple[StopText, ...], Field(max_length=MAX_STOP_TEXTS)] = ()
    """Texts of tokens that end a response in addition to the model's end tokens, such as
    <|im_end|>. Each must be one token of the actor's tokenizer. Default: none."""
    on_stop: OnStop = TRAIN_ON_ALL
    """Treatment of responses by the reason for their end. Default: all are trained on, but for
    conversations whose environment failed."""
    environment: EnvironmentSpec | None = None
    """Tools and environment of conversations: a response then goes on after calls of tools, with
    their answers. Default: a response is one turn."""
    min_valid_samples: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Fewest responses to a prompt that are not left out by onStop; the others to a prompt with
    fewer are left out, too. Default: they stay."""
    expected_prompt_tokens: Count | None = None
    """Mean number of tokens of a prompt, for estimates of times. Default: half of
    maxPromptTokens."""
    expected_response_tokens: Count | None = None
    """Mean number of tokens of a response, for estimates of times. Default: half of
    maxResponseTokens."""
    expected_truncated: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Share of responses that are cut off at maxResponseTokens, for estimates of times. Default:
    0.005, or less if the limit is far above the mean."""
    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    """Sampling temperature, also of the log-probabilities of sampled responses in training. vLLM
    allows at most 2."""
    top_p: TopP | None = None
    """Nucleus sampling: keep the fewest tokens, the likeliest ones, whose probabilities sum to at
    least this. Default: all tokens, as with 1."""
    top_k: TopK | None = None
    """Keep this many of the likeliest tokens. Default: all."""
    min_p: MinP | None = None
    """Keep the tokens with at least this share of the likeliest token's probability. Default: all
    tokens, as with 0."""
    parallelism: GenerationParallelism = GenerationParallelism()
    """Parallelism of the actor for generation. Default: the planner's choice."""
    max_concurrent_sequences: Annotated[int, Field(ge=1, le=65536)] = 256
    """Largest number of sequences that one engine decodes at once."""
    kv_cache_memory: Quantity | None = None
    """Memory for keys and values on each device, such as 4Gi. Default: the memory that the plan
    leaves over, up to what maxConcurrentSequences can use."""
    stage_fusion: StageFusionType = StageFusionType.AUTO
    """Stage fusion: a few engines finish the last responses of a step, while the devices of the
    others begin with finished responses. Auto, Always or Never."""
    stage_fusion_threshold: Count | None = None
    """Largest number of unfinished responses of a step at which a few engines take all of them;
    only with Always. Default: the planner's choice."""

    @property
    def required_context_tokens(self) -> int:
        """Context that a generating model must have."""
        # Responses may end where the context is full, but every prompt needs a first token.
        is_cut = self.on_stop.context_limit is not None
        return self.max_prompt_tokens + (1 if is_cut else self.max_response_tokens)

    @property
    def required_context(self) -> str:
        """The sum that is `required_context_tokens`, for messages."""
        is_cut = self.on_stop.context_limit is not None
        return f"maxPromptTokens + {1 if is_cut else 'maxResponseTokens'}"

    @property
    def context_advice(self) -> str:
        """What to do about a model with less context, for messages."""
        if self.on_stop.context_limit is not None:
            return "lower maxPromptTokens, or choose a model of longer context"
        return (
            "lower one of them, choose a model of longer context, or write "
            "rollout.onStop.ContextLimit, then responses are cut off there"
        )

    @property
    def may_migrate_responses(self) -> bool:
        """True if another engine may finish a response."""
        # A conversation that waits for a tool is on no engine, and the samples of a prompt are
        # counted where they all end.
        return self.environment is None and self.min_valid_samples is None

    @property
    def stop_actions(self) -> OnStop:
        """Treatment of responses, with the defaults of conversations."""
        on_stop = self.on_stop
        if self.environment is None:
            return on_stop
        return on_stop.model_copy(
            update={
                "tool_deadline": on_stop.tool_deadline or StopAction.LEAVE_OUT,
                "episode_deadline": on_stop.episode_deadline or StopAction.LEAVE_OUT,
                "environment_failed": on_stop.environment_failed or StopAction.LEAVE_OUT,
            }
        )

    @property
    def truncation(self) -> Truncation:
        """Truncation of sampling in training steps."""
        return Truncation(self.top_p, self.top_k, self.min_p)
