"""From a folder in Hugging Face format to a sharded module, and back to a folder.

With several ranks only the mesh's first reads the weights; the others receive their rows, one
parameter at a time, so that none of them ever holds a whole model.
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
    PreTrainedConfig,
    PreTrainedModel,
)

from rlhf_runtime.engines.configuration import head_name, outline, read_config
from rlhf_runtime.engines.heads import SCORE, as_scalar, check_head, is_classifier, without_head
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import CONFIG_FILE, read_object, shapes_of
from rlhf_runtime.models.weights import check_weights, refuse_others


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
    """The model of a folder, cut over the mesh's data axis by rows.

    Weights that are `trained` are in float32, others in the number format that they are computed
    in.

    With `value_head` the output projection is replaced by one output: that of a folder with a
    reward model (a sequence classifier of one label), else one that starts at zero, which
    `needs_head` refuses. A mesh of one rank that computes in its weights' format keeps ordinary
    parameters.

    Raises:
        WrongHead: a classifier where a language model is wanted, one of several labels or without
            its output's weights, or a language model where a reward model is needed.
        ModelIncomplete: weights are missing.
        UnsupportedModel: weights of another model than the folder's config.json names.
    """
    config = read_config(folder)
    config.dtype = torch.float32
    config.use_cache = False
    if value_head:
        as_scalar(config)
    check_head(folder, config, value_head=value_head, needs_head=needs_head)
    model = _read(folder, config, value_head) if parallel.is_first else _outline(config)
    if value_head and not (parallel.is_first and is_classifier(config)):
        _replace_head(model)
    model.eval()
    stored = torch.float32 if trained else precision
    for parameter in model.parameters():  # buffers stay: what is in them is exact in float32 only
        parameter.data = parameter.data.to(stored)
    if trained and recompute:
        recompute_blocks(model)
    if parallel.size == 1 and precision is stored:
        return _on_own_memory(model.to(parallel.device))
    _shard(model, parallel, None if precision is stored else precision)
    return model


def _on_own_memory(model: PreTrainedModel) -> PreTrainedModel:
    """A model none of whose parameters is a part of a file, which could not be offloaded."""
    for parameter in model.parameters():
        if not parameter.untyped_storage().resizable():
            parameter.data = parameter.data.clone()
    return model


def _read(folder: Path, config: PreTrainedConfig, may_lack_head: bool = False) -> PreTrainedModel:
    """A model in the form of a causal language model; a classifier's head is its output."""
    kind = AutoModelForSequenceClassification if is_classifier(config) else AutoModelForCausalLM
    has_language_head = not (may_lack_head or is_classifier(config))
    described = read_object(folder / CONFIG_FILE)
    check_weights(folder, described, has_language_head=has_language_head)
    try:
        found, info = kind.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused here
        )
    except NotImplementedError as error:  # it compares tied weights of which one does not fit
        _refuse_ties(folder, config)
        raise error
    output = found.score if is_classifier(config) else found.get_output_embeddings()
    _check_complete(folder, info, output, found, may_lack_head)
    if not is_classifier(config):
        return found
    model = _outline(config)
    setattr(model, model.base_model_prefix, found.base_model)
    model.set_output_embeddings(found.score)
    return model


def _refuse_ties(folder: Path, config: PreTrainedConfig) -> None:
    """Compare what files hold with the outline of a model whose weights transformers cannot tie.

    Raises:
        ModelIncomplete, UnsupportedModel: with the first difference.
    """
    parameters = _outline(config).named_parameters(remove_duplicate=False)  # ties are of both
    if found := shapes_of(folder):
        refuse_others(folder, found, {name: tuple(each.shape) for name, each in parameters})


def _check_complete(
    folder: Path,
    info: Mapping[str, Any],
    head: nn.Module,
    model: PreTrainedModel,
    may_lack_head: bool,
) -> None:
    """Compare what files hold with what a model consists of, which transformers would make up.

    Raises:
        WrongHead: a classifier without its head.
        ModelIncomplete: weights are missing.
        UnsupportedModel: some have other shapes than the model, or none of its layers takes them.
    """
    (head_weight,) = (f"{name}.weight" for name, each in model.named_modules() if each is head)
    missing = sorted(info["missing_keys"])
    differing = sorted(info["mismatched_keys"])
    if may_lack_head and not is_classifier(model.config):
        missing = [name for name in missing if name != head_weight]
        differing = [each for each in differing if each[0] != head_weight]
    if head_weight in missing and is_classifier(model.config):
        raise without_head(folder, head_weight)
    if missing:
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {_some(missing)}; copy the "
            "whole folder, or save the model again with save_pretrained"
        )
    if differing:
        name, found, wanted = differing[0]
        raise UnsupportedModel(
            f"weights of another shape than {CONFIG_FILE} says: got {name} of {[*found]} in "
            f"{folder}, allowed {[*wanted]}; copy the whole folder of one model"
        )
    if head is model.get_output_embeddings() and not _is_tied_as_said(model):
        raise UnsupportedModel(
            f"files with an output of its own where {CONFIG_FILE} says that it is the embedding: "
            f"got {head_weight} with other values than the embedding in {folder}, allowed equal "
            "ones, or none; write tie_word_embeddings: false in config.json, or remove it from the "
            "files"
        )
    if unknown := sorted(name for name in info["unexpected_keys"] if ".layers." in name):
        raise UnsupportedModel(
            f"weights that no layer of {type(model).__name__} has: got {_some(unknown)} in "
            f"{folder}, allowed those of the model that {CONFIG_FILE} names; copy the whole folder "
            "of one model"
        )


def _is_tied_as_said(model: PreTrainedModel) -> bool:
    """Whether the output is the embedding where a model's config says so: transformers leaves them
    apart where files have both with other values, which other ranks and vLLM do not see."""
    ends = [model.get_output_embeddings(), model.get_input_embeddings()]
    output, embedding = (end.get_parameter("weight") for end in ends)
    return not model.config.tie_word_embeddings or output is embedding


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _outline(config: PreTrainedConfig) -> PreTrainedModel:
    return outline(config, dtype=torch.float32, attn_implementation="sdpa")


def _replace_head(model: PreTrainedModel) -> None:
    old = model.get_output_embeddings()
    head = nn.Linear(old.in_features, 1, bias=False, device=old.weight.device)
    nn.init.zeros_(head.weight)
    model.set_output_embeddings(head)


def recompute_blocks(model: PreTrainedModel) -> None:
    """Recompute activations block by block.

    transformers does so only in blocks that are in training mode. What is in them stays in
    evaluation mode: dropout would part the trainer's log-probabilities from the sampler's.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def _shard(
    model: PreTrainedModel, parallel: ParallelContext, precision: torch.dtype | None
) -> None:
    """Cut every decoder block, then the rest, and spread the first rank's weights over all.

    Args:
        precision: in which gathered weights compute, where it is not theirs.
    """
    whole = {name: parameter.data for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())
    mesh = parallel.data_groups
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    blocks = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=parallel.device)
    _allocate_storage(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _spread(whole.pop(name), parameter, parallel)
        for name, buffer in model.named_buffers():
            if parallel.is_first:
                buffer.copy_(buffers[name])
            dist.broadcast(buffer, group_src=0, group=mesh.get_group())


def _spread(source: torch.Tensor, target: torch.Tensor, parallel: ParallelContext) -> None:
    """Overwrite a parameter, cut or not, by what the mesh's first rank has; others give an outline.
    Collective."""
    if not isinstance(target, DTensor):
        target.copy_(source)
        return
    source = (
        source.to(parallel.device)
        if parallel.is_first
        else torch.empty(source.shape, dtype=source.dtype, device=parallel.device)
    )
    mesh = parallel.data_groups
    rows = distribute_tensor(source, mesh, target.placements, src_data_rank=0)
    target.to_local().copy_(rows.to_local())


def _allocate_storage(model: PreTrainedModel) -> None:
    """Let FSDP allocate its final storage now: others keep views of it from here on."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def load_weights(model: nn.Module, folder: Path, parallel: ParallelContext) -> None:
    """Overwrite a model's parameters by those of the same name and shape of a folder; every rank
    must call, the first one reads."""
    config = read_config(folder)
    given = _read(folder, config) if parallel.is_first else _outline(config)
    sources = dict(given.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source = sources.get(name)
            if source is not None and source.shape == parameter.shape:
                _spread(source.data, parameter.data, parallel)


def save_causal_lm(
    model: PreTrainedModel, folder: Path, parallel: ParallelContext, dtype: torch.dtype
) -> None:
    """Write the whole model in Hugging Face format; every rank of its mesh must call, the first one
    writes.

    One with a value head becomes a sequence classifier of one label, as reward models are.
    """
    is_scalar = model.get_output_embeddings().out_features == 1
    head = head_name(model)
    state = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if parallel.is_first:
            saved = SCORE if is_scalar and name == head else name
            state[saved] = full.detach().to("cpu", dtype)
    if parallel.is_first:
        config = type(model.config).from_dict(model.config.to_dict())
        config.use_cache = True
        if is_scalar:
            config.num_labels = 1
        kind = AutoModelForSequenceClassification if is_scalar else AutoModelForCausalLM
        with torch.device("meta"):  # saving writes the outline's dtype into config.json
            written = kind.from_config(config, dtype=dtype)
        if not is_scalar:
            written.generation_config = model.generation_config
        # transformers asks whether this is the world's rank 0; here the main process is the mesh's
        written.should_save_on_this_rank = bool
        written.save_pretrained(folder, state_dict=state)
