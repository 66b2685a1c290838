"""Specification of a stage for Megatron: settings, layers and process groups."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.nn.functional import silu

from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.core import (
    MLP,
    AttnMaskType,
    ColumnParallelLinear,
    MLPSubmodules,
    ModuleSpec,
    ProcessGroupCollection,
    RowParallelLinear,
    SelfAttention,
    SelfAttentionSubmodules,
    TransformerBlockSubmodules,
    TransformerConfig,
    TransformerLayer,
    TransformerLayerSubmodules,
    get_bias_dropout_add,
)
from rlhf_runtime.engines.megatron.modules import Attention, RecomputedLayer, RmsNorm
from rlhf_runtime.engines.parallel import ParallelContext


def make_settings(
    architecture: Architecture,
    parallel: ParallelContext,
    sequence_parallel: bool,
    dtype: torch.dtype,
) -> TransformerConfig:
    """Megatron's settings of a model on a mesh; its fused kernels are all off.

    Args:
        architecture: of the model.
        parallel: the mesh, as this rank sees it.
        sequence_parallel: as in `Stage`.
        dtype: of weights and of messages between stages.
    """
    at = parallel.at
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.intermediate_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_key_value_heads,
        kv_channels=architecture.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        qk_layernorm=architecture.family.query_key_norms,
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.family.query_key_value_bias,
        softmax_scale=1 / math.sqrt(architecture.head_size),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        perform_initialization=False,  # every rank reads its weights from files
        use_cpu_initialization=True,  # no memory is touched before it is on its device
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        tensor_model_parallel_size=at.tensor_size,
        pipeline_model_parallel_size=at.pipeline_size,
        sequence_parallel=sequence_parallel and at.tensor_size > 1,
        calculate_per_token_loss=True,  # losses are shares already: Megatron must not divide
    )


def make_layers(
    settings: TransformerConfig, count: int, recompute: bool
) -> TransformerBlockSubmodules:
    """The module specification of a stage's layers.

    Args:
        settings: of the model.
        count: number of layers of one stage.
        recompute: True to recompute their activations in the backward pass.
    """
    norm = RmsNorm if settings.qk_layernorm else None
    attention = ModuleSpec(
        SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=Attention,
            linear_proj=RowParallelLinear,
            q_layernorm=norm,
            k_layernorm=norm,
        ),
    )
    mlp = ModuleSpec(
        MLP,
        params={"ffn_hidden_size": settings.ffn_hidden_size},
        submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
    )
    layer = ModuleSpec(
        RecomputedLayer if recompute else TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RmsNorm,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RmsNorm,
            mlp=mlp,
            mlp_bda=get_bias_dropout_add,
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=RmsNorm)


def process_groups(parallel: ParallelContext, is_tied: bool) -> ProcessGroupCollection:
    """A rank's process groups, in Megatron's form. Collective over the mesh.

    Args:
        parallel: the mesh, as this rank sees it.
        is_tied: True if the first and the last stage have the same embedding.
    """
    # Every constructor and schedule gets these groups, so that roles with different meshes live in
    # one process: Megatron's global `parallel_state` is never initialized. `Architecture.check_cut`
    # refuses the case that Megatron 0.16 computes only with `parallel_state`: more tensor ranks
    # than heads of keys and values.
    alone = parallel.own_group
    return ProcessGroupCollection(
        tp=parallel.tensor_group,
        pp=parallel.pipeline_group,
        dp=parallel.data_group,
        dp_cp=parallel.data_group,
        cp=alone,  # no context parallelism
        ep=alone,  # no experts
        expt_dp=alone,
        embd=_embedding_group(parallel) if is_tied else None,
        pos_embd=None,  # rotary positions have no embedding
    )


def _embedding_group(parallel: ParallelContext) -> dist.ProcessGroup | None:
    """The first and the last of this rank's stages; None on stages between them."""
    if parallel.at.pipeline_size <= 2:
        return parallel.pipeline_group
    return parallel.ends_group
