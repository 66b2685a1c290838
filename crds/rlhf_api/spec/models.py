"""The models of a job: sources of weights, training settings and parallelism."""

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
from rlhf_api.cel_literals import text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor


class BuiltinModel(StrEnum):
    """Generated models with random weights."""

    TINY_LLAMA = "TinyLlama"
    """A Llama of 0.5 M parameters with a character vocabulary of 64, for examples and tests."""


# Rule of models that may be named by a Hugging Face id.
REVISION_RULE = Rule(
    holds="!has(self.revision) || has(self.huggingFace)",
    what="revision without huggingFace",
    do="remove it, or name the model by its Hugging Face id",
    field=".revision",
    check=lambda self: violation_if(
        self.revision is not None and self.hugging_face is None, self.revision
    ),
)


class ModelSource(Alternatives):
    """Source of a role's weights and tokenizer: exactly one field is set."""

    alternatives: ClassVar = ("hugging_face", "path", "builtin", "same_as")

    hugging_face: Text | None = None
    """A Hugging Face model id, such as meta-llama/Llama-3.1-8B-Instruct."""
    revision: Text | None = None
    """Branch, tag or commit of the Hugging Face id. Default: its main branch."""
    path: Text | None = None
    """A folder with a model in Hugging Face format, as the workers see it. For `rlhf run` relative
    to the manifest's folder."""
    builtin: BuiltinModel | None = None
    """A generated model with random weights."""
    same_as: Identifier | None = None
    """Another role whose weights this one starts from, after a warm start if there is one."""

    validations: ClassVar = (REVISION_RULE,)


class ModelFamily(StrEnum):
    """Decoder families that the planner supports."""

    LLAMA = "Llama"
    """Llama."""
    MISTRAL = "Mistral"
    """Mistral."""
    QWEN2 = "Qwen2"
    """Qwen 2 and 2.5, with biases of query, key and value."""
    QWEN3 = "Qwen3"
    """Qwen 3, with norms of queries and keys."""
    GEMMA = "Gemma"
    """The first Gemma."""
    GEMMA2 = "Gemma2"
    """Gemma 2, with four norms in a block."""
    GEMMA3 = "Gemma3"
    """Gemma 3, with four norms in a block and norms of queries and keys."""


class ModelShape(Contract):
    """A decoder's dimensions, for planning if config.json cannot be read. `rlhf fill` writes
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
    """True if the output projection shares the embedding's weights."""
    family: ModelFamily | None = None
    """Family of the model, which determines further parameters of its layers. Default: none."""

    validations: ClassVar = (
        Rule(
            holds="self.numAttentionHeads % self.numKeyValueHeads == 0",
            what="the query heads are no multiple of the key and value heads",
            do="correct numAttentionHeads or numKeyValueHeads",
            check=lambda self: violation_if(
                self.num_attention_heads % self.num_key_value_heads != 0,
                f"{self.num_attention_heads} and {self.num_key_value_heads}",
            ),
        ),
    )


class TrainingEngineType(StrEnum):
    """Engine that trains a model or runs it forward."""

    FSDP = "FSDP"
    """PyTorch FSDP2: any Hugging Face causal language model."""
    MEGATRON = "Megatron"
    """Megatron-core with tensor and pipeline parallelism: Llama, Mistral, Qwen2 and Qwen3 with full
    attention."""


class TrainingParallelism(Contract):
    """Megatron's parallelism of a model. The role's devices form devices / (tensor x pipeline)
    replicas, which share the data."""

    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ranks that split each layer, on one node. It must divide the attention heads, the key and
    value heads, and the intermediate size. Default: the planner's choice; on CPUs 1."""
    pipeline: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Pipeline stages that split the layers. It must divide the number of layers. Default: the
    planner's choice; on CPUs 1."""
    sequence: bool = True
    """If true, tensor ranks split the tokens of a sequence in layers that are not split, which
    saves memory for activations (sequence parallelism). Without effect if tensor is 1."""

    @property
    def num_ranks(self) -> int:
        """Devices of one replica; sizes that are not set count as 1."""
        return (self.tensor or 1) * (self.pipeline or 1)


class LearningRateDecay(StrEnum):
    """Decay of the learning rate after warm-up."""

    NONE = "None"
    """No decay."""
    LINEAR = "Linear"
    """Linear decay to 0 at the last step."""
    COSINE = "Cosine"
    """Cosine decay to 0 at the last step."""


class Precision(StrEnum):
    """Number format of weights and activations.

    Formats are spelled as in PyTorch, NumPy and config.json files.
    """

    AUTO = "Auto"
    """bfloat16 on GPUs, float32 on CPUs."""
    FLOAT32 = "float32"
    """32 bits: exact, slow on GPUs."""
    BFLOAT16 = "bfloat16"
    """16 bits with the range of float32."""


class Offload(StrEnum):
    """Offloading of a role while other roles use its devices."""

    AUTO = "Auto"
    """Offload if the plan expects shorter steps. If times are unknown, offload only if not
    everything fits on the devices at once."""
    ALWAYS = "Always"
    """Always offload weights, gradients and optimizer state to the host."""
    DERIVED = "Derived"
    """Always free only what can be recomputed: bfloat16 weights that Megatron computes from master
    weights."""
    NEVER = "Never"
    """Never offload, even if the job then does not fit."""


class TrainingSpec(Contract):
    """Training settings of a role."""

    engine: TrainingEngineType = TrainingEngineType.FSDP
    """Engine that trains the model, or runs it forward if it is not trained: FSDP or Megatron."""
    parallelism: TrainingParallelism = TrainingParallelism()
    """Megatron's parallelism. Default: the planner's choice; on CPUs every device has a replica."""
    distributed_optimizer: bool = True
    """For Megatron: if true, replicas shard master weights and Adam's moments (ZeRO-1); if false,
    each replica keeps all of them."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    learning_rate_decay: LearningRateDecay = LearningRateDecay.NONE
    """Decay of the learning rate after warm-up: None, Linear or Cosine."""
    warmup_steps: NonNegativeCount = 0
    """Optimizer steps in which the learning rate rises: step k of n has k/n of the peak."""
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of the gradient's running mean."""
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of the squared gradient's running mean."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay of matrices. Norms and biases have none."""
    gradient_clip: PositiveFloat = 1.0
    """Largest global norm of the gradient."""
    micro_batch_tokens: Count | None = None
    """Padded tokens of a micro-batch on a rank; a longer sequence runs alone. Default: 16384 on
    GPUs, 4096 on CPUs, or a half of that, down to 1024: the size with the shortest steps, or, if
    times are unknown, the largest that fits."""
    activation_recompute: bool | None = None
    """If true, activations are recomputed in the backward pass: a third more computation, but less
    memory. Default: true if the plan expects shorter steps, or, if times are unknown, if not
    everything fits otherwise."""
    precision: Precision = Precision.AUTO
    """Number format of the computation; master weights and optimizer state are float32."""
    offload: Offload = Offload.AUTO
    """Offloading between the role's own calls: Auto (the planner's choice), Always (weights,
    gradients and optimizer state go to the host), Derived (bfloat16 weights are recomputed from
    master weights, Megatron only) or Never."""


def _fsdp_has_no_parallelism(spec: ModelSpec) -> Iterable[Violation]:
    parallelism = spec.training.parallelism
    for field, parts in (("tensor", parallelism.tensor), ("pipeline", parallelism.pipeline)):
        if not spec.uses_megatron and parts is not None and parts > 1:
            yield Violation(str(parts), ("training", "parallelism", field))


def _fsdp_shards_optimizer(spec: ModelSpec) -> Iterable[Violation]:
    return violation_if(not spec.uses_megatron and not spec.training.distributed_optimizer, "false")


def _fsdp_derives_no_weights(spec: ModelSpec) -> Iterable[Violation]:
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


# Rules on the parallelism of models with a shape. The planner applies them to shapes that it reads
# from config.json.
CUT_RULES = (
    # Every tensor rank has complete heads and equal columns of the feed-forward layer.
    Rule(
        holds=f"!has(self.shape) || !({_MEGATRON}) || !has({_TENSOR}) || "
        f"(self.shape.numAttentionHeads % {_TENSOR} == 0 && "
        f"self.shape.numKeyValueHeads % {_TENSOR} == 0 && "
        f"self.shape.intermediateSize % {_TENSOR} == 0)",
        what="the model cannot be divided evenly among the tensor ranks",
        allowed="a divisor of numAttentionHeads, numKeyValueHeads and intermediateSize",
        do="choose such a number",
        field=".training.parallelism.tensor",
        check=_tensor_is_even,
    ),
    # Every pipeline stage has the same number of layers.
    Rule(
        holds=f"!has(self.shape) || !({_MEGATRON}) || !has({_PIPELINE}) || "
        f"self.shape.numLayers % {_PIPELINE} == 0",
        what="the layers cannot be divided evenly among the pipeline stages",
        allowed="a divisor of numLayers",
        do="choose such a number",
        field=".training.parallelism.pipeline",
        check=_pipeline_is_even,
    ),
)


class ModelSpec(Contract):
    """One role's model."""

    source: ModelSource
    """Source of weights and tokenizer: exactly one of huggingFace, path, builtin, sameAs."""
    shape: ModelShape | None = None
    """The model's dimensions, for planning before its config.json can be read. Default: unknown."""
    training: TrainingSpec = TrainingSpec()
    """Training settings. Roles that are not trained use engine, parallelism, precision,
    microBatchTokens and offload for forward passes; other fields have no effect."""

    validations: ClassVar = (
        Rule(
            holds=f"{_MEGATRON} || ((!has({_TENSOR}) || {_TENSOR} == 1) && "
            f"(!has({_PIPELINE}) || {_PIPELINE} == 1))",
            what="engine FSDP has no tensor or pipeline parallelism",
            allowed="1 with engine FSDP",
            do="write engine: Megatron, or remove it",
            field=".training.parallelism",
            check=_fsdp_has_no_parallelism,
        ),
        Rule(
            holds=f"{_MEGATRON} || self.training.distributedOptimizer",
            what="engine FSDP always shards master weights and moments over all devices",
            allowed="true with engine FSDP",
            do="write engine: Megatron, or remove it",
            field=".training.distributedOptimizer",
            check=_fsdp_shards_optimizer,
        ),
        Rule(
            holds=f"{_MEGATRON} || self.training.offload != {text(Offload.DERIVED)}",
            what="engine FSDP has no weights that can be recomputed from others",
            allowed="Auto, Always or Never with engine FSDP",
            do="write engine: Megatron, or choose one of these",
            field=".training.offload",
            check=_fsdp_derives_no_weights,
        ),
        *CUT_RULES,
    )

    @property
    def uses_megatron(self) -> bool:
        """True if Megatron trains the model or runs it forward."""
        return self.training.engine is TrainingEngineType.MEGATRON
