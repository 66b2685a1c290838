"""Stage: Megatron's GPTModel for one pipeline stage of a Hugging Face model on one tensor rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.core import (
    GPTModel,
    initialize_rng_tracker,
    parallel_state,
    set_tensor_model_parallel_attributes,
)
from rlhf_runtime.engines.megatron.cpu_patches import run_on_cpu
from rlhf_runtime.engines.megatron.family import (
    EMBEDDING,
    FINAL_NORM,
    LAYER_PATH,
    Parameter,
    WeightSplit,
)
from rlhf_runtime.engines.megatron.head import HeadRequest, MegatronHead, ScalarLayer
from rlhf_runtime.engines.megatron.layout import GetStorage, TensorShard, group_views, weight_slices
from rlhf_runtime.engines.megatron.modules import RotaryAngles, UntrainedPadding
from rlhf_runtime.engines.megatron.specification import (
    make_layers,
    make_settings,
    process_groups,
)
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.reshard.views import FlatShard, View, Views, flat_range_views


class Stage(GPTModel):  # type: ignore[misc]  # Megatron is not typed
    """This tensor rank's part of the layers of its stage.

    Weights are not initialized: `files.load_model` fills them.
    """

    def __init__(
        self,
        config: Any,
        parallel: ParallelContext,
        *,
        value_head: bool = False,
        sequence_parallel: bool = False,
        recompute: bool = False,
        excluded_tokens: tuple[range, ...] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Build the stage. Collective over the mesh.

        Args:
            config: of transformers.
            parallel: the mesh, as this rank sees it.
            value_head: True if a scalar head, of zeros, replaces the output projection.
            sequence_parallel: True if tensor ranks shard the positions of a sequence between matrix
                products. Lengths must then be multiples of their number. No effect with one tensor
                rank.
            recompute: True to recompute layers' activations in the backward pass.
            excluded_tokens: tokens of probability 0 in the results of requests.
            dtype: of weights and of messages between stages.

        Raises:
            UnsupportedModel: the family, a setting of the model or the mesh.
        """
        architecture = Architecture.from_config(config, value_head)
        at = parallel.at
        architecture.check_cut(at.tensor_size, at.pipeline_size)
        _prepare_process(parallel.device)
        groups = process_groups(parallel, architecture.is_tied)
        # Files fill both ends of a tied model. Without the group Megatron does not sync them.
        embedding_group, groups.embd = groups.embd, None
        settings = make_settings(architecture, parallel, sequence_parallel, dtype)
        super().__init__(
            settings,
            make_layers(settings, architecture.num_layers // at.pipeline_size, recompute),
            architecture.padded_vocabulary(at.tensor_size),
            config.max_position_embeddings,
            pre_process=parallel.is_first_stage,
            post_process=parallel.is_last_stage,
            share_embeddings_and_output_weights=architecture.is_tied,
            position_embedding_type="rope",
            pg_collection=groups,
        )
        groups.embd = embedding_group
        self.embd_group = embedding_group
        self.rotary_pos_emb = RotaryAngles(
            config, architecture.head_size, groups.cp, parallel.device
        )
        self.architecture = architecture
        self.parallel = parallel
        self.hf_config = config
        self._head = self._make_head(value_head, excluded_tokens)
        self._freeze_padding_token(config.pad_token_id)
        self._mark_cut_parameters()
        self._clear_padding()
        self.to(parallel.device)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        request: HeadRequest | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Run the stage forward.

        Args:
            input_ids: int64[batch, length], the same on all stages.
            position_ids: int64[batch, length], or None for 0, 1, 2, ...
            attention_mask: bool[batch or 1, 1, queries, keys], true where attention is allowed;
                None: causal.
            request: outputs of the last stage; other stages ignore it.
            options: see GPTModel.

        Returns:
            Hidden states for the next stage. On the last stage the result of the request,
            float32[1 or 2, n], for `to_token_outputs`; without a request logits, float[batch,
            length, own vocabulary], of this tensor rank's tokens.
        """
        # GPTModel has no arguments for either: both are passed through attributes.
        self.rotary_pos_emb.positions = position_ids
        if self._head is not None:
            self._head.request = request
        result: torch.Tensor = super().forward(input_ids, position_ids, attention_mask, **options)
        if not self.parallel.is_last_stage or request is not None:
            return result
        # Without the vocabulary's padding, which must not take part in a softmax.
        own = self.own_vocabulary()
        return result if len(own) == result.shape[-1] else result[..., : len(own)]

    def own_vocabulary(self) -> range:
        """The tokens with embeddings and logits on this tensor rank; may be none."""
        at, size = self.parallel.at, self.architecture.vocabulary_size
        rows = self.architecture.padded_vocabulary(at.tensor_size) // at.tensor_size
        return range(size)[at.tensor * rows : (at.tensor + 1) * rows]

    def mapped_parameters(self) -> Iterator[tuple[torch.nn.Parameter, Parameter, int | None]]:
        """This rank's parameters, their mappings, and their layers, counted over all stages.

        Raises:
            UnsupportedModel: the family has no mapping for a parameter of Megatron's.
        """
        in_layers = {parameter.path: parameter for parameter in self.architecture.family.layer}
        ends = {end.path: end for end in (EMBEDDING, FINAL_NORM, self.architecture.output)}
        first = self.parallel.at.pipeline * len(self.decoder.layers)
        for path, parameter in self.named_parameters():
            layer: int | None = None
            mapping = ends.get(path)
            if path.startswith(LAYER_PATH):
                number, _, rest = path.removeprefix(LAYER_PATH).partition(".")
                layer, mapping = first + int(number), in_layers.get(rest)
            if mapping is None:
                raise UnsupportedModel(
                    f"a parameter without a mapping in its family: got {path} of a model of type "
                    f"{self.hf_config.model_type!r}; add it to its family in "
                    "engines/megatron/family.py"
                )
            yield parameter, mapping, layer

    def views(self, storage: GetStorage = lambda parameter: parameter.data) -> Views:
        """Views of this rank's storage, by Hugging Face name.

        Args:
            storage: selects the storage of a parameter: its values, a tensor of the same shape such
                as gradients, or a shard of a flattened one, such as a distributed optimizer's;
                None leaves the parameter out.
        """
        at = self.parallel.at
        shard = TensorShard(at.tensor, at.tensor_size)
        views: dict[str, Sequence[View]] = {}
        for parameter, mapping, layer in self.mapped_parameters():
            stored = storage(parameter)
            if stored is None:
                continue
            tensor = parameter.data if isinstance(stored, FlatShard) else stored
            own = group_views(weight_slices(tensor, mapping, layer, self.architecture, shard))
            views |= flat_range_views(tensor, own, stored) if isinstance(stored, FlatShard) else own
        return views

    @property
    def copies(self) -> frozenset[str]:
        """Names of weights that another stage owns: on the last stage of a tied model, the
        embedding."""
        at_end = self.parallel.is_last_stage and not self.parallel.is_first_stage
        is_copy = at_end and self.architecture.is_tied
        return frozenset(weight.name for weight in self.architecture.output.weights if is_copy)

    def _freeze_padding_token(self, token: int | None) -> None:
        if self.parallel.is_first_stage and token is not None:
            words, is_cut = self.embedding.word_embeddings, self.config.sequence_parallel
            UntrainedPadding(words, token, self.parallel.at.tensor, is_cut)

    def _make_head(
        self, value_head: bool, excluded_tokens: tuple[range, ...]
    ) -> MegatronHead | None:
        if not self.parallel.is_last_stage:
            return None
        if value_head:
            self.output_layer = ScalarLayer(self.config.hidden_size, self.config.params_dtype)
        return MegatronHead(
            self.output_layer,
            None if value_head else self.own_vocabulary(),
            self.parallel.tensor_group,
            self.config.sequence_parallel,
            excluded_tokens,
        )

    def _mark_cut_parameters(self) -> None:
        """Mark the parameters that differ between tensor ranks."""
        # Megatron does so in its own initialization of weights, which allocates each full weight.
        for parameter, mapping, _ in self.mapped_parameters():
            if mapping.split is not WeightSplit.REPLICATED and not hasattr(
                parameter, "tensor_model_parallel"
            ):
                dim = int(mapping.split is WeightSplit.COLUMNS)
                stride = 2 if mapping.split is WeightSplit.PAIRS else 1
                set_tensor_model_parallel_attributes(parameter, True, dim, stride)

    @torch.no_grad()
    def _clear_padding(self) -> None:
        """Set the vocabulary's padding to zero."""
        # It has no gradient and so stays zero, but takes part in gradients of hidden states.
        for parameter, mapping, _ in self.mapped_parameters():
            if mapping.split is WeightSplit.VOCABULARY:
                parameter[len(self.own_vocabulary()) :] = 0


def _prepare_process(device: torch.device) -> None:
    """Initialize Megatron's state of the process, which is independent of models and groups."""
    if device.type == "cpu":
        run_on_cpu()
    # There is no dropout, so no random number is drawn: this tracker stores no states.
    initialize_rng_tracker(inference_rng_tracker=True)
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()  # used with sequence parallelism only
