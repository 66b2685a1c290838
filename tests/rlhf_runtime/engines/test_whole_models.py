"""A plain Hugging Face model, its folder and a copy on the host are the same boxes as an engine's:
every tensor whole on one rank, listed by the function that FSDP's views come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_runtime.engines.fsdp.engine import row_views
from rlhf_runtime.engines.megatron.files import WeightFiles
from rlhf_runtime.engines.offloading import Offloading
from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.gathering import list_pieces
from rlhf_runtime.reshard.layout import Layout, Piece, check_copies
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import Views

from .tiny_models import GENERATING, MODELS, write_model


def check_listed(views: Views, shapes: dict[str, tuple[int, ...]]) -> None:
    """That one rank holds every element of every tensor once."""
    check_copies(Layout(shapes, (list_pieces(views),)), dict.fromkeys(shapes, 1))


@pytest.mark.parametrize("kind", [*MODELS, *GENERATING])
def test_model_folder_and_host_copy_hold_the_same_boxes(kind: str, tmp_path: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(write_model(kind, tmp_path), dtype="float32")
    for parameter in module.parameters():  # else parts of a file, which cannot be offloaded
        parameter.data = parameter.data.clone()
    views = row_views(module)
    with WeightFiles(tmp_path) as files:
        shapes = files.shapes()
        check_listed(views, shapes)
        assert list_pieces(views) == tuple(Piece(n, TensorSlice.full(shapes[n])) for n in views)
        moved = Offloading(torch.device("cpu"))
        moved.offload(module.parameters())
        tensors = [view.tensor for parts in views.values() for view in parts]
        assert not any(tensor.untyped_storage().nbytes() for tensor in tensors)
        check_listed(views, shapes)
        moved.load()
        for name, ((tensor, box),) in views.items():
            assert torch.equal(tensor, files.read(name, box)), name


def test_what_such_a_model_lacks_or_has_twice_is_named(tmp_path: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(write_model("llama", tmp_path))
    views = dict(row_views(module))
    with WeightFiles(tmp_path) as files:
        shapes = files.shapes()
    norm = "model.norm.weight"
    with pytest.raises(LayoutError, match=f"on too many ranks: .* of '{norm}' once more"):
        check_listed({**views, norm: [*views[norm], *views[norm]]}, shapes)
    del views[norm]
    with pytest.raises(LayoutError, match=f"'{norm}' of shape .* is incomplete"):
        check_listed(views, shapes)
