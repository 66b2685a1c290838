"""Shapes that are filled in plan as the models themselves do, and are held against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_flow.errors import ManifestOutdated, ShapeUnknown
from rlhf_planner.problem.from_manifest import shapes_to_fill
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS, WELL_KNOWN_MODELS, check_shapes
from rlhf_sizing.config import shape_from_config
from rlhf_sizing.shape import MODEL_TYPES, DecoderShape

from ..conftest import MakeJob

CONFIG = {
    **{"num_attention_heads": 4, "hidden_size": 128, "num_hidden_layers": 2},
    **{"intermediate_size": 512, "num_key_value_heads": 2, "vocab_size": 64},
}


def model(folder: Path, **fields: Any) -> dict[str, Any]:
    """A model in a folder, for a manifest."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **CONFIG, **fields}))
    return {"source": {"path": str(folder)}}


@pytest.mark.parametrize("shape", [*WELL_KNOWN_MODELS.values(), *BUILTIN_MODELS.values()])
def test_a_shape_in_a_manifest_is_the_whole_shape(shape: DecoderShape) -> None:
    read = DecoderShape.from_spec(shape.to_spec())
    assert read == shape and read.family == shape.family


@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_so_is_one_of_a_configuration(model_type: str) -> None:
    shape = shape_from_config({"model_type": model_type, **CONFIG}, "a file", "nothing")
    read = DecoderShape.from_spec(shape.to_spec())
    assert read == shape and read.family == model_type


def test_what_the_operator_knows_is_not_filled_in(job: MakeJob, tmp_path: Path) -> None:
    known = {
        "actor": {"source": {"huggingFace": "Qwen/Qwen3-8B"}},
        "critic": {"source": {"sameAs": "actor"}},
        "reference": {"source": {"builtin": "TinyLlama"}},
    }
    given = job(algorithm={"type": "PPO"}, models=known)
    assert list(shapes_to_fill(given, tmp_path)) == []


def test_models_of_folders_and_rewards_are_filled_in(job: MakeJob, tmp_path: Path) -> None:
    models = {"actor": model(tmp_path / "a"), "critic": {"source": {"sameAs": "actor"}}}
    path = model(tmp_path / "b", num_hidden_layers=6)["source"]["path"]
    rewards = [{"name": "style", "model": {"path": path}}]
    given = job(algorithm={"type": "PPO"}, models=models, rewards=rewards)
    filled = {each.path: each.value["numLayers"] for each in shapes_to_fill(given, tmp_path)}
    assert filled == {
        ("spec", "models", "actor", "shape"): 2,
        ("spec", "rewards", 0, "model", "shape"): 6,
    }


def test_a_model_that_is_not_here_is_named(job: MakeJob, tmp_path: Path) -> None:
    models = {"actor": {"source": {"path": str(tmp_path / "gone")}}}
    with pytest.raises(ShapeUnknown, match="cannot be read") as unknown:
        list(shapes_to_fill(job(models=models), tmp_path))
    assert unknown.value.location == ("spec", "models", "actor")


def shaped(folder: Path, **changes: Any) -> dict[str, Any]:
    """A model with the shape of its folder, changed."""
    found = model(folder)
    shape = {
        **{"numLayers": 2, "hiddenSize": 128, "intermediateSize": 512, "numAttentionHeads": 4},
        **{"numKeyValueHeads": 2, "headDim": 32, "vocabSize": 64},
    }
    return found | {"shape": shape | changes}


def test_a_shape_without_a_family_is_held_against_dimensions_only(
    job: MakeJob, tmp_path: Path
) -> None:
    for changes in ({}, {"family": "Llama"}):
        given = job(models={"actor": shaped(tmp_path, **changes)})
        check_shapes(given, tmp_path)
        assert list(shapes_to_fill(given, tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hiddenSize": 256}, "got hiddenSize 256, allowed 128, as the model says"),
        ({"family": "Qwen3"}, "got family Qwen3, allowed Llama"),
        ({"tiedEmbeddings": True}, "got tiedEmbeddings True, allowed False"),
    ],
)
def test_a_shape_of_another_model_is_refused_and_filled_in_anew(
    job: MakeJob, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    given = job(models={"actor": shaped(tmp_path, **changes)})
    with pytest.raises(ManifestOutdated, match=said) as refused:
        check_shapes(given, tmp_path)
    assert refused.value.location == ("spec", "models", "actor", "shape", *changes)
    (filling,) = shapes_to_fill(given, tmp_path)
    assert filling.value["hiddenSize"] == 128 and filling.value["family"] == "Llama"


@pytest.mark.parametrize("fields", [{"model_type": "mamba"}, None], ids=["unknown", "not here"])
def test_a_shape_by_hand_is_believed_where_nothing_else_is_known(
    job: MakeJob, tmp_path: Path, fields: dict[str, Any] | None
) -> None:
    given = job(models={"actor": shaped(tmp_path, numLayers=7)})
    if fields is None:
        (tmp_path / "config.json").unlink()
    else:
        model(tmp_path, **fields)
    check_shapes(given, tmp_path)
    assert list(shapes_to_fill(given, tmp_path)) == []
