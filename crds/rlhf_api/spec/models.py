"""The models of a job: where each role's weights come from, how it is trained and cut."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Count,
    Identifier,
    NonNegativeCount,
    NonNegativeFloat,
    PositiveFloat,
    Text,
)
from rlhf_api.cel import text
from rlhf_api.exclusive import Alternatives
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor


class BuiltinModel(StrEnum):
    """Models made on the spot, with random weights."""

    TINY_LLAMA = "TinyLlama"
    """A Llama of 0.5 M parameters with a character vocabulary of 64, for examples and tests."""


REVISION_RULE = Rule(
    holds="!has(self.revision) || has(self.huggingFace)",
    what="revision without huggingFace",
    do="remove it, or name the model by its Hugging Face id",
    field=".revision",
    check=lambda self: violation_if(
        self.revision is not None and self.hugging_face is None, self.revision
    ),
)
"""Of what names a model by a Hugging Face id or otherwise."""


class ModelSource(Alternatives):
    """Where a role's weights and tokenizer come from: exactly one."""

    alternatives: ClassVar = ("hugging_face", "path", "builtin", "same_as")

    hugging_face: Text | None = None
    """A Hugging Face model id, such as meta-llama/Llama-3.1-8B-Instruct."""
    revision: Text | None = None
    """Branch, tag or commit of the Hugging Face id. Default: its main branch."""
    path: Text | None = None
    """A folder with a model in Hugging Face format, as the workers see it. For `rlhf run` relative
    to the manifest's folder."""
    builtin: BuiltinModel | None = None
    """A model made on the spot."""
    same_as: Identifier | None = None
    """Another role whose weights this one starts from (after a warm start, if there is one)."""

    validations: ClassVar = (REVISION_RULE,)


class ModelFamily(StrEnum):
    """Families of decoders whose layers the planner knows."""

    LLAMA = "Llama"
    """Llama."""
    MISTRAL = "Mistral"
    """Mistral."""
    QWEN2 = "Qwen2"
    """Qwen 2 and 2.5: biases of query, key and value."""
    QWEN3 = "Qwen3"
    """Qwen 3: norms of queries and keys."""
    GEMMA = "Gemma"
    """The first Gemma."""
    GEMMA2 = "Gemma2"
    """Gemma 2: four norms in a block."""
    GEMMA3 = "Gemma3"
    """Gemma 3: four norms in a block, and those of queries and keys."""


class ModelShape(Contract):
    """A decoder's dimensions, for planning where config.json cannot be read. `rlhf fill` writes
    them."""

    num_layers: Count
    """Transformer blocks."""
    hidden_size: Count
    """Width of the residual stream."""
    intermediate_size: Count
    """Width of the feed-forward layer."""
    num_attention_heads: Count
    """Query heads."""
    num_key_value_heads: Count
    """Key and value heads."""
    head_dim: Count
    """Width of one head."""
    vocab_size: Count
    """Rows of the embedding."""
    tied_embeddings: bool = False
    """Whether the output projection shares the embedding's weights."""
    family: ModelFamily | None = None
    """The family of the model, which says what its layers have besides. Default: nothing."""

    validations: ClassVar = (
        Rule(
            holds="self.numAttentionHeads % self.numKeyValueHeads == 0",
            what="query heads must be a multiple of key and value heads",
            do="correct numAttentionHeads or numKeyValueHeads",
            check=lambda self: violation_if(
                self.num_attention_heads % self.num_key_value_heads != 0,
                f"{self.num_attention_heads} and {self.num_key_value_heads}",
            ),
        ),
    )


class TrainingEngineType(StrEnum):
    """What trains a model, or runs it forward."""

    FSDP = "FSDP"
    """PyTorch FSDP2: any Hugging Face causal language model."""
    MEGATRON = "Megatron"
    """Megatron-core, cut by parallelism: Llama, Mistral, Qwen2 and Qwen3 with full attention."""


class TrainingParallelism(Contract):
    """How Megatron cuts a model. What it leaves of a role's devices are replicas, which share the
    data: devices / (tensor x pipeline)."""

    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks over which each layer is cut, on one node. It divides attention heads, key and value
    heads, and the intermediate size. Default: the planner's choice; on CPUs 1."""
    pipeline: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Stages over which the layers are distributed. It divides their number. Default: the
    planner's choice; on CPUs 1."""
    sequence: bool = True
    """Whether tensor ranks share the tokens of a sequence where layers are not cut, which takes
    less memory for activations; without meaning where tensor is 1."""

    @property
    def num_ranks(self) -> int:
        """Devices that hold the model once, as far as it says so."""
        return (self.tensor or 1) * (self.pipeline or 1)


class LearningRateDecay(StrEnum):
    """How the learning rate falls after warm-up."""

    NONE = "None"
    """It stays at its peak."""
    LINEAR = "Linear"
    """It falls in a straight line to 0 at the last step."""
    COSINE = "Cosine"
    """It falls along half a cosine to 0 at the last step."""


class Precision(StrEnum):
    """Number format of weights and activations.

    Formats are written as PyTorch, NumPy and every config.json write them.
    """

    AUTO = "Auto"
    """bfloat16 on GPUs, float32 on CPUs."""
    FLOAT32 = "float32"
    """32 bits: exact, slow on GPUs."""
    BFLOAT16 = "bfloat16"
    """16 bits with the range of float32."""


class Offload(StrEnum):
    """Whether a role leaves its devices to others while these work there."""

    AUTO = "Auto"
    """Where steps are expected to be shorter so; where times are not known, only where not
    everything fits on the devices at once."""
    ALWAYS = "Always"
    """Always, with everything: the host has a copy."""
    DERIVED = "Derived"
    """Always, with what it can make anew, and nothing else: bfloat16 weights of a role that
    Megatron trains, from its master weights."""
    NEVER = "Never"
    """Never, be it that the job does not fit."""


class TrainingSpec(Contract):
    """How a role is trained."""

    engine: TrainingEngineType = TrainingEngineType.FSDP
    """What trains it, or runs it forward where it is only read: FSDP or Megatron."""
    parallelism: TrainingParallelism = TrainingParallelism()
    """How Megatron cuts it. Default: the planner's choice; on CPUs not at all, every device has a
    replica."""
    distributed_optimizer: bool = True
    """For Megatron: whether replicas share master weights and Adam's moments (ZeRO-1), or each
    keeps all of them."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    learning_rate_decay: LearningRateDecay = LearningRateDecay.NONE
    """How the learning rate falls after warm-up: None, Linear or Cosine."""
    warmup_steps: NonNegativeCount = 0
    """Optimizer steps over which the learning rate rises from 0."""
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of the gradient's running mean."""
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of the squared gradient's running mean."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    gradient_clip: PositiveFloat = 1.0
    """Largest global norm of the gradient."""
    micro_batch_tokens: Count | None = None
    """Padded tokens that a rank runs forward and backward at once; a longer sequence runs alone.
    Default: 16384 on GPUs, 4096 on CPUs, or that halved, down to 1024: what makes steps shortest,
    or, where times are not known, the most that fits."""
    activation_recompute: bool | None = None
    """Whether activations are computed again for the backward pass: a third more computation, but
    less memory. Default: where steps are expected to be shorter so, or, where times are not known,
    where not everything fits otherwise."""
    precision: Precision = Precision.AUTO
    """Number format of the computation; master weights and optimizer state are float32."""
    offload: Offload = Offload.AUTO
    """Whether the role leaves its devices to others but for its own calls: Auto (the planner's
    choice), Always (weights, gradients and optimizer state are on the host),
    Derived (bfloat16 weights are made anew from master weights, Megatron only) or Never."""


def _is_uncut(spec: ModelSpec) -> Iterable[Violation]:
    parallelism = spec.training.parallelism
    for field, parts in (("tensor", parallelism.tensor), ("pipeline", parallelism.pipeline)):
        if not spec.uses_megatron and parts is not None and parts > 1:
            yield Violation(str(parts), ("training", "parallelism", field))


def _shares_its_optimizer(spec: ModelSpec) -> Iterable[Violation]:
    return violation_if(not spec.uses_megatron and not spec.training.distributed_optimizer, "false")


def _derives_weights(spec: ModelSpec) -> Iterable[Violation]:
    derives = spec.training.offload is Offload.DERIVED
    return violation_if(derives and not spec.uses_megatron, Offload.DERIVED.value)


def _tensor_is_even(spec: ModelSpec) -> Iterable[Violation]:
    if spec.shape is None or not spec.uses_megatron:
        return ()
    return uneven_tensor(spec.shape, spec.training.parallelism.tensor or 1)


def _pipeline_is_even(spec: ModelSpec) -> Iterable[Violation]:
    if spec.shape is None or not spec.uses_megatron:
        return ()
    return uneven_pipeline(spec.shape, spec.training.parallelism.pipeline or 1)


_MEGATRON = f"self.training.engine == {text(TrainingEngineType.MEGATRON)}"
_TENSOR, _PIPELINE = "self.training.parallelism.tensor", "self.training.parallelism.pipeline"


CUT_RULES = (
    Rule(
        holds=f"!has(self.shape) || !({_MEGATRON}) || !has({_TENSOR}) || "
        f"(self.shape.numAttentionHeads % {_TENSOR} == 0 && "
        f"self.shape.numKeyValueHeads % {_TENSOR} == 0 && "
        f"self.shape.intermediateSize % {_TENSOR} == 0)",
        what="tensor ranks cannot share the model evenly",
        allowed="a divisor of numAttentionHeads, numKeyValueHeads and intermediateSize",
        do="choose such a number",
        field=".training.parallelism.tensor",
        check=_tensor_is_even,
    ),
    Rule(
        holds=f"!has(self.shape) || !({_MEGATRON}) || !has({_PIPELINE}) || "
        f"self.shape.numLayers % {_PIPELINE} == 0",
        what="pipeline stages cannot share the layers evenly",
        allowed="a divisor of numLayers",
        do="choose such a number",
        field=".training.parallelism.pipeline",
        check=_pipeline_is_even,
    ),
)
"""Of models whose dimensions are known: one for tensor ranks, one for stages. The planner applies
them to those that it reads."""


class ModelSpec(Contract):
    """One role's model."""

    source: ModelSource
    """Where weights and tokenizer come from: exactly one of huggingFace, path, builtin, sameAs."""
    shape: ModelShape | None = None
    """The model's dimensions, for planning before its config.json can be read. Default: unknown."""
    training: TrainingSpec = TrainingSpec()
    """How it is trained. For roles that are only read, engine, parallelism, precision,
    microBatchTokens and offload say how they run forward; the rest is without meaning."""

    validations: ClassVar = (
        Rule(
            holds=f"{_MEGATRON} || ((!has({_TENSOR}) || {_TENSOR} == 1) && "
            f"(!has({_PIPELINE}) || {_PIPELINE} == 1))",
            what="FSDP cuts no model into tensor ranks or pipeline stages",
            allowed="1 with engine FSDP",
            do="write engine: Megatron, or remove it",
            field=".training.parallelism",
            check=_is_uncut,
        ),
        Rule(
            holds=f"{_MEGATRON} || self.training.distributedOptimizer",
            what="FSDP always shares master weights and moments among all devices",
            allowed="true with engine FSDP",
            do="write engine: Megatron, or remove it",
            field=".training.distributedOptimizer",
            check=_shares_its_optimizer,
        ),
        Rule(
            holds=f"{_MEGATRON} || self.training.offload != {text(Offload.DERIVED)}",
            what="FSDP trains the weights that it computes with: none follow from others",
            allowed="Auto, Always or Never with engine FSDP",
            do="take engine Megatron, or another one of these",
            field=".training.offload",
            check=_derives_weights,
        ),
        *CUT_RULES,
    )

    @property
    def uses_megatron(self) -> bool:
        """Whether Megatron trains it, or runs it forward."""
        return self.training.engine is TrainingEngineType.MEGATRON
