"""A pipeline stage of a language model on one tensor rank: Megatron's GPTModel for a Hugging Face
config."""

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
from rlhf_runtime.engines.megatron.family import (
    EMBEDDING,
    FINAL_NORM,
    LAYER_PATH,
    Cut,
    Parameter,
)
from rlhf_runtime.engines.megatron.groups import process_groups
from rlhf_runtime.engines.megatron.head import Head, Question, ScalarLayer
from rlhf_runtime.engines.megatron.layout import Place, Storage, collect, parts_of
from rlhf_runtime.engines.megatron.modules import RotaryAngles, UntrainedPadding
from rlhf_runtime.engines.megatron.shim import run_on_cpu
from rlhf_runtime.engines.megatron.specification import make_layers, make_settings
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.reshard.views import FlatShard, View, Views, flat_range_views


class Stage(GPTModel):  # type: ignore[misc]  # Megatron is not typed
    """The layers of this rank's stage, and of each the part of this tensor rank.

    Weights are not initialized: `loading.load_model` fills them.
    """

    def __init__(
        self,
        config: Any,
        parallel: ParallelContext,
        *,
        value_head: bool = False,
        sequence_parallel: bool = False,
        recompute: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Build it; every rank of the mesh does.

        Args:
            config: of transformers.
            parallel: the mesh, as this rank sees it.
            value_head: whether a scalar head, of zeros, takes the place of the output projection.
            sequence_parallel: whether tensor ranks share the positions of a sequence between
                matrix products. Lengths must then be multiples of their number. Without several
                tensor ranks there is nothing to share.
            recompute: whether a layer's activations are computed again for the backward pass.
            dtype: of weights and of what stages send each other.

        Raises:
            UnsupportedModel: the family, a setting of the model or the cut.
        """
        architecture = Architecture.of(config, value_head)
        at = parallel.at
        architecture.check_cut(at.tensor_size, at.pipeline_size)
        _prepare_process(parallel.device)
        groups = process_groups(parallel, architecture.is_tied)
        embedding_group, groups.embd = groups.embd, None  # files fill both ends of a tied model
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
        self._head = self._make_head(value_head) if parallel.is_last_stage else None
        self._leave_padding_token(config.pad_token_id)
        self._say_what_is_cut()
        self._clear_padding()
        self.to(parallel.device)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        question: Question | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Hidden states for the next stage; of the last stage what is asked, float32[1 or 2, n]:
        see `read_answer`. Where nothing is asked, logits.

        Logits are float[batch, length, own vocabulary]: those of this tensor rank's tokens, without
        the padding of the vocabulary, which so never takes part in a softmax.

        Args:
            input_ids: int64[batch, length], the same on all stages.
            position_ids: like them, or None for 0, 1, 2, ...
            attention_mask: bool[batch or 1, 1, length, length], true where the second token is seen
                by the first; None for all earlier ones.
            question: what the last stage shall read; other stages do not look at it.
            options: see GPTModel.
        """
        self.rotary_pos_emb.positions = position_ids
        if self._head is not None:
            self._head.question = question
        result: torch.Tensor = super().forward(input_ids, position_ids, attention_mask, **options)
        if not self.parallel.is_last_stage or question is not None:
            return result
        own = self.own_vocabulary()
        return result if len(own) == result.shape[-1] else result[..., : len(own)]

    def own_vocabulary(self) -> range:
        """The tokens of which this tensor rank has embeddings and logits; may be none."""
        at, size = self.parallel.at, self.architecture.vocabulary_size
        rows = self.architecture.padded_vocabulary(at.tensor_size) // at.tensor_size
        return range(size)[at.tensor * rows : (at.tensor + 1) * rows]

    def held(self) -> Iterator[tuple[torch.nn.Parameter, Parameter, int | None]]:
        """This rank's parameters, what each holds, and its layer, counted over all stages.

        Raises:
            UnsupportedModel: Megatron has a parameter that the family's mapping does not know.
        """
        known = {parameter.path: parameter for parameter in self.architecture.family.layer}
        ends = {end.path: end for end in (EMBEDDING, FINAL_NORM, self.architecture.output)}
        first = self.parallel.at.pipeline * len(self.decoder.layers)
        for path, parameter in self.named_parameters():
            layer: int | None = None
            found = ends.get(path)
            if path.startswith(LAYER_PATH):
                number, _, rest = path.removeprefix(LAYER_PATH).partition(".")
                layer, found = first + int(number), known.get(rest)
            if found is None:
                raise UnsupportedModel(
                    f"a parameter that the family's mapping does not know: got {path} of a model "
                    f"of type {self.hf_config.model_type!r}; add it to its family in "
                    "engines/megatron/family.py"
                )
            yield parameter, found, layer

    def views(self, storage: Storage = lambda parameter: parameter.data) -> Views:
        """For each Hugging Face name the views of this rank's storage and the boxes they hold.

        Args:
            storage: which storage: that of the weights, or of something of their shape, such as
                their gradients, or of something for a range of them, such as what a distributed
                optimizer has on one data rank; parameters without it are left out.
        """
        at = self.parallel.at
        place = Place(at.tensor, at.tensor_size)
        views: dict[str, Sequence[View]] = {}
        for parameter, held, layer in self.held():
            found = storage(parameter)
            if found is None:
                continue
            of = parameter.data if isinstance(found, FlatShard) else found
            own = collect(parts_of(of, held, layer, self.architecture, place))
            views |= flat_range_views(of, own, found) if isinstance(found, FlatShard) else own
        return views

    @property
    def copies(self) -> frozenset[str]:
        """The weights that are another stage's, of which this one has a copy: on the last stage of
        a tied model the embedding."""
        at_end = self.parallel.is_last_stage and not self.parallel.is_first_stage
        is_copy = at_end and self.architecture.is_tied
        return frozenset(weight.name for weight in self.architecture.output.weights if is_copy)

    def _leave_padding_token(self, token: int | None) -> None:
        if self.parallel.is_first_stage and token is not None:
            words, is_cut = self.embedding.word_embeddings, self.config.sequence_parallel
            UntrainedPadding(words, token, self.parallel.at.tensor, is_cut)

    def _make_head(self, value_head: bool) -> Head:
        if value_head:
            self.output_layer = ScalarLayer(self.config.hidden_size, self.config.params_dtype)
        return Head(
            self.output_layer,
            None if value_head else self.own_vocabulary(),
            self.parallel.tensor_group,
            self.config.sequence_parallel,
        )

    def _say_what_is_cut(self) -> None:
        """Tell Megatron which parameters differ between tensor ranks; its own initialization of
        weights would, after making each of them whole."""
        for parameter, held, _ in self.held():
            if held.cut is not Cut.WHOLE and not hasattr(parameter, "tensor_model_parallel"):
                dim, stride = int(held.cut is Cut.COLUMNS), 1 + (held.cut is Cut.PAIRS)
                set_tensor_model_parallel_attributes(parameter, True, dim, stride)

    @torch.no_grad()
    def _clear_padding(self) -> None:
        """Let the vocabulary's padding be zeros, which nothing changes: its gradient is none, but
        what lies there takes part in those of hidden states."""
        for parameter, held, _ in self.held():
            if held.cut is Cut.VOCABULARY:
                parameter[len(self.own_vocabulary()) :] = 0


def _prepare_process(device: torch.device) -> None:
    """What Megatron keeps once per process, for all models; it knows no groups."""
    if device.type == "cpu":
        run_on_cpu()
    # Nothing is ever dropped out, so no random number is drawn: this tracker keeps no states.
    initialize_rng_tracker(inference_rng_tracker=True)
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()  # used with sequence parallelism only
