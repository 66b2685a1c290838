"""How responses are sampled."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count
from rlhf_api.cel import text
from rlhf_api.quantity import Quantity
from rlhf_api.rules import Rule, Violation, violation_if


class GenerationEngineType(StrEnum):
    """What generates."""

    VLLM = "VLLM"
    """vLLM, in the training processes."""


class StageFusionType(StrEnum):
    """Whether stages of a step overlap."""

    AUTO = "Auto"
    """Where the plan expects shorter steps of it."""
    ALWAYS = "Always"
    """Whatever the plan expects of it, as on devices whose times are not known. Where nothing can
    overlap the job is refused."""
    NEVER = "Never"
    """All responses end before anything begins with them."""


class GenerationParallelism(Contract):
    """How the actor is cut for generation. What is left out the planner chooses."""

    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks over which each layer is cut. Default: the planner chooses."""


def _threshold_has_a_fusion(spec: RolloutSpec) -> list[Violation]:
    is_alone = spec.stage_fusion is not StageFusionType.ALWAYS
    has_threshold = spec.stage_fusion_threshold is not None
    return violation_if(has_threshold and is_alone, spec.stage_fusion.value)


class RolloutSpec(Contract):
    """Generation and sampling.

    Sampling is never truncated (no top-p or top-k): the log-probabilities that training needs are
    those of the full distribution at this temperature.
    """

    validations: ClassVar = (
        Rule(
            holds="!has(self.stageFusionThreshold) || "
            f"self.stageFusion == {text(StageFusionType.ALWAYS)}",
            what="a threshold of a stage fusion that may not be there",
            got="self.stageFusion",
            allowed="Always beside stageFusionThreshold",
            do="write stageFusion: Always, or remove the threshold",
            field=".stageFusionThreshold",
            check=_threshold_has_a_fusion,
        ),
    )

    engine: GenerationEngineType = GenerationEngineType.VLLM
    """What generates."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Responses sampled for every prompt: the group size of GRPO."""
    max_prompt_tokens: Count = 1024
    """Longest prompt; data.onLongPrompt says what happens to longer ones."""
    max_response_tokens: Count = 1024
    """A response is cut here if it has not ended by itself."""
    expected_prompt_tokens: Count | None = None
    """Tokens of a prompt on average, which the plan estimates times by. Default: half of
    maxPromptTokens."""
    expected_response_tokens: Count | None = None
    """Tokens of a response on average, which the plan estimates times by. Default: half of
    maxResponseTokens."""
    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    """Sampling temperature; training uses the same. vLLM takes at most 2."""
    parallelism: GenerationParallelism = GenerationParallelism()
    """How the actor is cut for generation. Default: the planner chooses."""
    max_concurrent_sequences: Annotated[int, Field(ge=1, le=65536)] = 256
    """Sequences that one engine decodes at once."""
    kv_cache_memory: Quantity | None = None
    """Memory for keys and values on each device, such as 4Gi. Default: what the plan finds left
    over, at most what the concurrent sequences can use."""
    stage_fusion: StageFusionType = StageFusionType.AUTO
    """Auto, Always or Never: whether few engines finish the last responses of a step, while the
    devices of the others begin with those that have ended."""
    stage_fusion_threshold: Count | None = None
    """Responses of a step that are left, at most, when few engines finish them; only with Always.
    Default: the planner's choice."""
