"""Generation of responses."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count
from rlhf_api.cel_literals import text
from rlhf_api.quantity import Quantity
from rlhf_api.rules import Rule, Violation, violation_if


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


class TokenLimitAction(StrEnum):
    """Treatment of responses that are cut off at maxResponseTokens."""

    TRAIN = "Train"
    """They are trained on like all others."""
    MASK = "Mask"
    """Their scores count in baselines and advantages, but none of their tokens in a loss."""
    LEAVE_OUT = "LeaveOut"
    """They count neither in baselines nor in a loss, as if they had no score."""


class OnStop(Contract):
    """Treatment of responses by the reason for their end."""

    # The keys are stop reasons, whose names are values of the contract: TokenLimit, not tokenLimit.
    token_limit: Annotated[TokenLimitAction, Field(alias="TokenLimit")] = TokenLimitAction.TRAIN
    """Treatment of responses that are cut off at maxResponseTokens: Train, Mask or LeaveOut."""


class GenerationParallelism(Contract):
    """Parallelism of the actor for generation. The planner chooses fields that are not set."""

    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks that split each layer. Default: the planner's choice."""


def _threshold_needs_fusion(spec: RolloutSpec) -> list[Violation]:
    is_unused = spec.stage_fusion is not StageFusionType.ALWAYS
    has_threshold = spec.stage_fusion_threshold is not None
    return violation_if(has_threshold and is_unused, spec.stage_fusion.value)


class RolloutSpec(Contract):
    """Generation and sampling.

    Sampling is never truncated (no top-p or top-k): the log-probabilities that training needs are
    those of the full distribution at this temperature.
    """

    validations: ClassVar = (
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
    on_stop: OnStop = OnStop()
    """Treatment of responses by the reason for their end. Default: all are trained on."""
    expected_prompt_tokens: Count | None = None
    """Mean number of tokens of a prompt, for estimates of times. Default: half of
    maxPromptTokens."""
    expected_response_tokens: Count | None = None
    """Mean number of tokens of a response, for estimates of times. Default: half of
    maxResponseTokens."""
    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    """Sampling temperature, also of the log-probabilities of sampled responses in training. vLLM
    allows at most 2."""
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
