"""What is held where, and what cannot be: without Megatron and without ranks."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, LlamaConfig, PretrainedConfig

from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.family import FAMILIES, WeightSplit
from rlhf_runtime.engines.megatron.files import WeightFiles, load_model
from rlhf_runtime.engines.megatron.layout import (
    TensorShard,
    check_mesh_pieces,
    group_views,
    weight_slices,
)
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.gathering import list_pieces
from rlhf_runtime.reshard.layout import Piece
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import Views

from .megatron_models import CONFIGS, PLAIN, TIED, WIDE, make_model, write_model


def fused(architecture: Architecture, path: str, shard: TensorShard) -> torch.Tensor:
    """A rank's storage of a parameter, of the size that Megatron gives it."""
    size, sizes = shard.size, architecture.sizes
    rows = {
        WeightSplit.GROUPS: (sizes["query"] + 2 * sizes["key"]) // size,
        WeightSplit.PAIRS: 2 * sizes["intermediate"] // size,
        WeightSplit.VOCABULARY: architecture.padded_vocabulary(size) // size,
    }
    (parameter,) = {p for found, p, _ in architecture.parameters() if found == path}
    shape = architecture.full_shape(parameter.weights[0])
    if parameter.split is WeightSplit.COLUMNS:
        return torch.zeros(shape[0], shape[1] // size)
    return torch.zeros(rows.get(parameter.split, shape[0]), *shape[1:])


def model_views(architecture: Architecture, tensor: int, size: int) -> Views:
    """Of a tensor rank that has all layers."""
    shard = TensorShard(tensor, size)
    return group_views(
        part
        for path, parameter, layer in architecture.parameters()
        if not (architecture.is_tied and path == "output_layer.weight")
        for part in weight_slices(
            fused(architecture, path, shard), parameter, layer, architecture, shard
        )
    )


def pieces(kind: str, size: int) -> tuple[Architecture, list[list[Piece]]]:
    architecture = Architecture.from_config(CONFIGS[kind]())
    return architecture, [
        list(list_pieces(model_views(architecture, tensor, size))) for tensor in range(size)
    ]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_a_family_knows_every_weight_of_its_models_and_its_shape(kind: str) -> None:
    expected = {name: tuple(p.shape) for name, p in make_model(kind).named_parameters()}
    assert Architecture.from_config(CONFIGS[kind]()).shapes() == expected


@pytest.mark.parametrize(("kind", "size"), list(product(CONFIGS, (1, 2))))
def test_tensor_ranks_hold_everything(kind: str, size: int) -> None:
    architecture, held = pieces(kind, size)
    check_mesh_pieces(architecture, held, tensor=size, pipeline=1)


def test_rows_of_queries_keys_and_values_alternate_by_group() -> None:
    """Four heads of two groups, of 16 rows each: on rank 1 of 2 heads 2 and 3, key and value 1."""
    architecture = Architecture.from_config(CONFIGS["qwen2"]())
    (parameter,) = (p for p in architecture.family.layer if p.path.endswith("linear_qkv.bias"))
    storage = torch.arange(64.0)
    parts = list(weight_slices(storage, parameter, 1, architecture, TensorShard(1, 2)))
    assert [(name.split(".")[-2], box) for name, _, box in parts] == [
        ("q_proj", TensorSlice((32,), (32,))),
        ("k_proj", TensorSlice((16,), (16,))),
        ("v_proj", TensorSlice((16,), (16,))),
    ]
    assert [part.tolist() for _, part, _ in parts] == [
        list(map(float, rows)) for rows in (range(32), range(32, 48), range(48, 64))
    ]
    assert all(part.data_ptr() == storage[int(part[0]) :].data_ptr() for _, part, _ in parts)
    names = [
        name
        for name, _, _ in weight_slices(
            torch.zeros(128), parameter, 1, architecture, TensorShard(0, 1)
        )
    ]
    assert [name.split(".")[-2][0] for name in names] == list("qkvqkv")


def test_the_vocabulary_is_padded_so_that_ranks_share_it_and_vllms_rows_contain_theirs() -> None:
    architecture = Architecture.from_config(CONFIGS[PLAIN]())
    assert [architecture.padded_vocabulary(n) for n in (1, 2, 4, 6)] == [320, 320, 320, 384]


def test_copies_are_of_norms_and_of_tied_embeddings() -> None:
    copies = Architecture.from_config(CONFIGS[TIED]()).copies(2, 2)
    assert copies["model.embed_tokens.weight"] == copies["model.norm.weight"] == 2
    assert copies["model.layers.1.mlp.up_proj.weight"] == 1 and "lm_head.weight" not in copies
    assert Architecture.from_config(CONFIGS[TIED]()).copies(4, 1)["model.embed_tokens.weight"] == 1


def test_a_missing_region_is_named() -> None:
    architecture, held = pieces(PLAIN, 2)
    held[1] = [piece for piece in held[1] if "0.self_attn.k_proj" not in piece.name]
    with pytest.raises(LayoutError, match=r"layers.0.self_attn.k_proj.weight.*start=\(16, 0\)"):
        check_mesh_pieces(architecture, held, tensor=2, pipeline=1)


def test_a_norm_that_one_rank_lacks_is_found() -> None:
    architecture, held = pieces(WIDE, 2)
    held[0] = [piece for piece in held[0] if "3.self_attn.q_norm" not in piece.name]
    with pytest.raises(
        LayoutError, match=r"on too few ranks: got .*'model.layers.3.self_attn.q_norm"
    ):
        check_mesh_pieces(architecture, held, tensor=2, pipeline=1)


def test_a_cut_weight_that_is_whole_on_every_rank_is_found() -> None:
    architecture, held = pieces(PLAIN, 2)
    shape = architecture.shapes()["lm_head.weight"]
    held = [
        [
            Piece(n, TensorSlice.full(shape)) if n == "lm_head.weight" else Piece(n, box)
            for n, box in own
        ]
        for own in held
    ]
    with pytest.raises(LayoutError, match=r"on too many ranks: got .*'lm_head.weight' .*on rank 1"):
        check_mesh_pieces(architecture, held, tensor=2, pipeline=1)


def test_a_doubled_region_is_named_even_where_another_is_missing() -> None:
    architecture, held = pieces(PLAIN, 2)
    held[1] = [
        Piece(name, TensorSlice((1, 0), box.shape))
        if name == "lm_head.weight"
        else Piece(name, box)
        for name, box in held[1]
    ]
    with pytest.raises(LayoutError, match=r"'lm_head.weight' of .*none of 2 ranks has TensorSlice"):
        check_mesh_pieces(architecture, held, tensor=2, pipeline=1)


def test_padding_and_unknown_names_are_no_part_of_a_model() -> None:
    architecture, held = pieces(PLAIN, 1)
    with pytest.raises(LayoutError, match="unknown tensor: got 'model.bias' on rank 0"):
        check_mesh_pieces(
            architecture,
            [[*held[0], Piece("model.bias", TensorSlice((0,), (1,)))]],
            tensor=1,
            pipeline=1,
        )
    padded = Piece("lm_head.weight", TensorSlice((0, 0), (320, 64)))
    with pytest.raises(LayoutError, match="outside its tensor"):
        check_mesh_pieces(architecture, [[*held[0], padded]], tensor=1, pipeline=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias = True, allowed False for llama"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu', allowed 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "'yarn'"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "'dynamic' of 1 of a head, allowed default, linear, llama3 of full heads",
        ),
    ],
)
def test_settings_that_the_layers_lack_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        Architecture.from_config(LlamaConfig(**changes))


def test_sliding_windows_are_refused() -> None:
    config = CONFIGS["mistral, no groups"]()
    config.sliding_window = 16
    with pytest.raises(UnsupportedModel, match="sliding_window = 16.*allowed full attention"):
        Architecture.from_config(config)


def test_a_family_without_mapping_is_refused() -> None:
    """Gemma scales its embeddings, and its norms add one to their weights."""
    with pytest.raises(UnsupportedModel) as caught:
        Architecture.from_config(GemmaConfig())
    assert "'gemma', allowed llama, mistral, qwen2, qwen3; train it with" in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("tensor", "pipeline", "message"),
    [
        (3, 1, "got tensor 3, and 4 attention heads / 3 = 1.333, allowed 1, 2 for this model;"),
        (4, 1, "got tensor 4, and 2 key and value heads / 4 = 0.5, allowed 1, 2 for this model;"),
        (1, 3, "got pipeline 3, and 2 layers / 3 = 0.6667, allowed 1, 2 for this model;"),
    ],
)
def test_cuts_that_do_not_come_out_even_are_refused(
    tensor: int, pipeline: int, message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        Architecture.from_config(CONFIGS[PLAIN]()).check_cut(tensor, pipeline)


def test_columns_of_the_mlp_are_shared_evenly() -> None:
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=8, intermediate_size=100)
    with pytest.raises(
        UnsupportedModel, match="100 columns of the feed-forward .*allowed 1, 2, 4 for"
    ):
        Architecture.from_config(config).check_cut(8, 1)


class CountedReads:
    """Counts the elements that are read of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.elements = 0
        read = WeightFiles.read

        def counted(files: WeightFiles, name: str, box: TensorSlice) -> torch.Tensor:
            self.elements += box.volume
            return read(files, name, box)

        monkeypatch.setattr(WeightFiles, "read", counted)


@pytest.mark.parametrize("shard_size", ["5GB", "50KB"])
def test_a_rank_reads_its_own_parts_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shard_size: str
) -> None:
    write_model("qwen2", tmp_path, shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "50KB")
    architecture = Architecture.from_config(CONFIGS["qwen2"]())
    total = sum(p.numel() for p in make_model("qwen2").parameters())
    expected = dict(make_model("qwen2").named_parameters())
    for tensor in range(2):
        views = model_views(architecture, tensor, 2)
        with monkeypatch.context() as patch:
            counted = CountedReads(patch)
            load_model(views, architecture, tmp_path)
        held = sum(view.tensor.numel() for parts in views.values() for view in parts)
        assert counted.elements == held < 0.55 * total
        for name, parts in views.items():
            whole = TensorSlice.full(tuple(expected[name].shape))
            for part, box in parts:
                assert torch.equal(part, expected[name][box.slices_in(whole)]), name


def load(folder: Path, config: PretrainedConfig) -> None:
    architecture = Architecture.from_config(config)
    load_model(model_views(architecture, 0, 1), architecture, folder)


def changed(folder: Path, remove: str | None = None, **more: torch.Tensor) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    if remove is not None:
        del tensors[remove]
    save_file({**tensors, **more}, file, {"format": "pt"})
    return folder


def test_missing_weights_are_named(tmp_path: Path) -> None:
    changed(write_model(PLAIN, tmp_path), "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelIncomplete, match="without model.layers.1.mlp.up_proj.weight; copy"):
        load(tmp_path, CONFIGS[PLAIN]())


def test_weights_that_nobody_would_use_are_named(tmp_path: Path) -> None:
    more = {f"model.layers.{n}.mlp.up_proj.bias": torch.zeros(96) for n in range(2)}
    changed(write_model(PLAIN, tmp_path), **more)
    with pytest.raises(UnsupportedModel, match=r"got model.layers.0.mlp.up_proj.bias, model"):
        load(tmp_path, CONFIGS[PLAIN]())


def test_weights_that_follow_from_others_may_be_there(tmp_path: Path) -> None:
    more = {
        "lm_head.weight": torch.zeros(300, 64),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
    }
    load(changed(write_model(TIED, tmp_path), **more), CONFIGS[TIED]())


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    write_model(PLAIN, tmp_path)
    changed(tmp_path, **{"model.norm.weight": torch.zeros(32)})
    with pytest.raises(UnsupportedModel, match=r"got \(32,\) of model.norm.weight .* \(64,\)"):
        load(tmp_path, CONFIGS[PLAIN]())


def test_folders_without_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelIncomplete, match="with pytorch_model.bin, allowed model.safetensors"):
        load(tmp_path, CONFIGS[PLAIN]())
    write_model(PLAIN, tmp_path / "parts", "50KB")
    next((tmp_path / "parts").glob("*-00002-of-*")).unlink()
    with pytest.raises(ModelIncomplete, match=r"without model-00002-of-"):
        load(tmp_path / "parts", CONFIGS[PLAIN]())


def test_every_family_is_tested() -> None:
    assert {make().model_type for make in CONFIGS.values()} == set(FAMILIES)
