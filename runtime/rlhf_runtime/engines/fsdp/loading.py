"""Loads a folder in Hugging Face format into a sharded module, and saves it again.

With several ranks only the mesh's first reads the weights; the others receive their rows, one
parameter at a time, so that none of them ever has a full model in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from rlhf_runtime.engines.heads import (
    SCORE,
    check_head,
    is_classifier,
    make_scalar_config,
    missing_head_error,
)
from rlhf_runtime.engines.model_files import (
    meta_model,
    output_weight_name,
    read_config,
    without_generation_settings,
    write_configs,
)
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import CONFIG_FILE, read_object, tensor_shapes
from rlhf_runtime.models.weights import check_weights, compare_weights


def load_causal_lm(
    folder: Path,
    parallel: ParallelContext,
    precision: torch.dtype,
    *,
    value_head: bool,
    needs_head: bool,
    trained: bool,
    recompute: bool,
) -> PreTrainedModel:
    """Load the model of a folder, cut by rows over the mesh's data axis.

    A mesh of one rank that computes in the weights' format keeps ordinary parameters.

    Args:
        folder: in Hugging Face format.
        parallel: the mesh, as this rank sees it.
        precision: format of the computation, and of frozen weights.
        value_head: True to replace the output projection by one output: that of a reward model (a
            sequence classifier of one label) if the folder has one, else one that starts at zero.
        needs_head: True to refuse a folder without that output.
        trained: True if weights will change: they are then in float32.
        recompute: True to recompute activations in the backward pass, if trained.

    Raises:
        WrongHead: a classifier instead of a language model, one of several labels or without its
            output's weights, or a language model instead of a reward model.
        ModelIncomplete: weights are missing.
        UnsupportedModel: weights of another model than the folder's config.json names.
    """
    config = read_config(folder)
    config.dtype = torch.float32
    config.use_cache = False
    if value_head:
        make_scalar_config(config)
    check_head(folder, config, value_head=value_head, needs_head=needs_head)
    # Other ranks need only shapes: they receive their rows from the first one.
    model = _read(folder, config, value_head) if parallel.is_first else _meta_model(config)
    if value_head and not (parallel.is_first and is_classifier(config)):
        _replace_head(model)
    model.eval()
    stored = torch.float32 if trained else precision
    for parameter in model.parameters():  # not buffers: rotary frequencies need float32
        parameter.data = parameter.data.to(stored)
    if trained and recompute:
        recompute_blocks(model)
    if parallel.size == 1 and precision is stored:
        return _unmap_parameters(model.to(parallel.device))
    _shard(model, parallel, None if precision is stored else precision)
    return model


def _unmap_parameters(model: PreTrainedModel) -> PreTrainedModel:
    """Copy parameters that are memory-mapped from a file."""
    # Storages of mapped files cannot be resized, which offloading needs.
    for parameter in model.parameters():
        if not parameter.untyped_storage().resizable():
            parameter.data = parameter.data.clone()
    return model


def _read(folder: Path, config: PreTrainedConfig, may_lack_head: bool = False) -> PreTrainedModel:
    """Read a model as a causal language model; a classifier's head becomes its output layer."""
    kind = AutoModelForSequenceClassification if is_classifier(config) else AutoModelForCausalLM
    has_language_head = not (may_lack_head or is_classifier(config))
    described = read_object(folder / CONFIG_FILE)
    check_weights(folder, described, has_language_head=has_language_head)
    try:
        loaded, info = kind.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused here
        )
    except NotImplementedError as error:  # raised on tying weights of different shapes
        _check_tied_shapes(folder, config)
        raise error
    output = loaded.score if is_classifier(config) else loaded.get_output_embeddings()
    _check_complete(folder, info, output, loaded, may_lack_head)
    if not is_classifier(config):
        return loaded
    model = _meta_model(config)
    setattr(model, model.base_model_prefix, loaded.base_model)
    model.set_output_embeddings(loaded.score)
    return model


def _check_tied_shapes(folder: Path, config: PreTrainedConfig) -> None:
    """Explain why transformers cannot tie the weights of a folder.

    Raises:
        ModelIncomplete, UnsupportedModel: with the first difference to the model.
    """
    # With duplicates: files may list a tied weight under both names.
    parameters = _meta_model(config).named_parameters(remove_duplicate=False)
    if actual := tensor_shapes(folder):
        expected = {name: tuple(parameter.shape) for name, parameter in parameters}
        compare_weights(folder, actual, expected)


def _check_complete(
    folder: Path,
    info: Mapping[str, Any],
    head: nn.Module,
    model: PreTrainedModel,
    may_lack_head: bool,
) -> None:
    """Compare the loaded files with the model.

    Raises:
        WrongHead: a classifier without its head.
        ModelIncomplete: weights are missing.
        UnsupportedModel: some have other shapes than the model, or belong to none of its layers.
    """
    # transformers would silently initialize missing weights at random.
    (head_weight,) = (f"{name}.weight" for name, part in model.named_modules() if part is head)
    missing = sorted(info["missing_keys"])
    differing = sorted(info["mismatched_keys"])
    if may_lack_head and not is_classifier(model.config):
        missing = [name for name in missing if name != head_weight]
        differing = [entry for entry in differing if entry[0] != head_weight]
    if head_weight in missing and is_classifier(model.config):
        raise missing_head_error(folder, head_weight)
    if missing:
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {_first_names(missing)}; copy "
            "the complete folder, or save the model again with save_pretrained"
        )
    if differing:
        name, actual, expected = differing[0]
        raise UnsupportedModel(
            f"weights of another shape than {CONFIG_FILE} says: got {name} of {[*actual]} in "
            f"{folder}, allowed {[*expected]}; copy the complete folder of one model"
        )
    if head is model.get_output_embeddings() and not _is_tied_as_configured(model):
        raise UnsupportedModel(
            f"files with an output of its own where {CONFIG_FILE} says that it is the embedding: "
            f"got {head_weight} with other values than the embedding in {folder}, allowed equal "
            "ones, or none; write tie_word_embeddings: false in config.json, or remove it from the "
            "files"
        )
    if unknown := sorted(name for name in info["unexpected_keys"] if ".layers." in name):
        raise UnsupportedModel(
            f"weights that no layer of {type(model).__name__} has: got {_first_names(unknown)} in "
            f"{folder}, allowed those of the model that {CONFIG_FILE} names; copy the complete "
            "folder of one model"
        )


def _is_tied_as_configured(model: PreTrainedModel) -> bool:
    """True if output and embedding are one parameter, or the config does not tie them."""
    # transformers leaves them untied if files have both with different values. Other ranks and
    # vLLM would tie them nevertheless.
    ends = [model.get_output_embeddings(), model.get_input_embeddings()]
    output, embedding = (end.get_parameter("weight") for end in ends)
    return not model.config.tie_word_embeddings or output is embedding


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _meta_model(config: PreTrainedConfig) -> PreTrainedModel:
    return meta_model(config, dtype=torch.float32, attn_implementation="sdpa")


def _replace_head(model: PreTrainedModel) -> None:
    old = model.get_output_embeddings()
    head = nn.Linear(old.in_features, 1, bias=False, device=old.weight.device)
    nn.init.zeros_(head.weight)
    model.set_output_embeddings(head)


def recompute_blocks(model: PreTrainedModel) -> None:
    """Recompute activations block by block in the backward pass."""
    # transformers does so only in blocks in training mode. Their children stay in evaluation mode:
    # with dropout the trainer's log-probabilities would differ from the sampler's.
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def _shard(
    model: PreTrainedModel, parallel: ParallelContext, precision: torch.dtype | None
) -> None:
    """Cut every decoder block, then the rest, and distribute the first rank's weights.

    Args:
        precision: format of gathered weights, if it is not that of the parameters.
    """
    full = {name: parameter.data for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())
    mesh = parallel.data_groups
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    # Block by block, so that the full weights of the model are never in memory at once.
    blocks = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=parallel.device)
    _allocate_storage(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _distribute(full.pop(name), parameter, parallel)
        for name, buffer in model.named_buffers():
            if parallel.is_first:
                buffer.copy_(buffers[name])
            dist.broadcast(buffer, group_src=0, group=mesh.get_group())


def _distribute(source: torch.Tensor, target: torch.Tensor, parallel: ParallelContext) -> None:
    """Overwrite a parameter by the full tensor of the mesh's first rank. Collective.

    Other ranks pass a tensor of the same shape, such as one on the meta device.
    """
    if not isinstance(target, DTensor):
        target.copy_(source)
        return
    source = (
        source.to(parallel.device)
        if parallel.is_first
        else torch.empty(source.shape, dtype=source.dtype, device=parallel.device)
    )
    mesh = parallel.data_groups
    # Into the existing storage: other views of it, such as those of transfers, stay valid.
    rows = distribute_tensor(source, mesh, target.placements, src_data_rank=0)
    target.to_local().copy_(rows.to_local())


def _allocate_storage(model: PreTrainedModel) -> None:
    """Make FSDP allocate its final storage."""
    # FSDP would allocate it at the first forward pass, which would invalidate earlier views.
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


def load_weights(model: nn.Module, folder: Path, parallel: ParallelContext) -> None:
    """Overwrite a model's parameters by those of the same name and shape in a folder. Collective;
    the first rank reads."""
    config = read_config(folder)
    saved = _read(folder, config) if parallel.is_first else _meta_model(config)
    sources = dict(saved.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source = sources.get(name)
            if source is not None and source.shape == parameter.shape:
                _distribute(source.data, parameter.data, parallel)


def save_causal_lm(
    model: PreTrainedModel, folder: Path, parallel: ParallelContext, dtype: torch.dtype
) -> None:
    """Write the full model in Hugging Face format. Collective over its mesh; the first rank writes.

    A model with a value head becomes a sequence classifier of one label, as reward models are.
    """
    is_scalar = model.get_output_embeddings().out_features == 1
    head = output_weight_name(model)
    state = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if parallel.is_first:
            saved = SCORE if is_scalar and name == head else name
            state[saved] = full.detach().to("cpu", dtype)
    if parallel.is_first:
        config = without_generation_settings(model.config)
        config.use_cache = True
        if is_scalar:
            config.num_labels = 1
        kind = AutoModelForSequenceClassification if is_scalar else AutoModelForCausalLM
        with torch.device("meta"):  # saving writes this model's dtype into config.json
            written = kind.from_config(config, dtype=dtype)
        if not is_scalar:
            written.generation_config = GenerationConfig()  # transformers refuses to write some
        # transformers writes on the world's rank 0 only; here the mesh's first rank writes.
        written.should_save_on_this_rank = bool
        written.save_pretrained(folder, state_dict=state)
        source = Path(model.config.name_or_path)
        write_configs(model.config, source, folder, dtype, is_scalar=is_scalar)
