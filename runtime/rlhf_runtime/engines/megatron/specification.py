"""What Megatron is told to build: its settings for a model, and what its layers consist of."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import silu

from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.core import (
    MLP,
    AttnMaskType,
    ColumnParallelLinear,
    MLPSubmodules,
    ModuleSpec,
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
        sequence_parallel: as of `Stage`.
        dtype: of weights and of what stages send each other.
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
        perform_initialization=False,  # weights come from files, each rank's part alone
        use_cpu_initialization=True,  # memory is not touched before it is on its device
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        tensor_model_parallel_size=at.tensor_size,
        pipeline_model_parallel_size=at.pipeline_size,
        sequence_parallel=sequence_parallel and at.tensor_size > 1,
        variable_seq_lengths=True,  # micro-batches are as long as their rows
        moe_token_dispatcher_type="alltoall",  # no experts here, but lengths that vary ask for it
        deallocate_pipeline_outputs=True,  # what was sent is not kept for the backward pass
        batch_p2p_comm=True,  # the other way uses the world's group, which other roles use
        calculate_per_token_loss=True,  # losses say themselves what they are divided by
    )


def make_layers(
    settings: TransformerConfig, count: int, recompute: bool
) -> TransformerBlockSubmodules:
    """What a stage's layers are made of.

    Args:
        settings: of the model.
        count: layers of one stage.
        recompute: whether their activations are computed again for the backward pass.
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
