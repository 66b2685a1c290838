"""Files of a model, written one after the other."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import LlamaConfig, T5Config

from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.disk_space import is_disk_full
from rlhf_runtime.engines.model_files import Shapes, write_configs, write_weights
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.folder import copy_tokenizer

from ...small_disk import small_disk
from ..data.small_tokenizers import END, write_base_tokenizer

SHAPES = {"a": (4, 8), "b": (32,), "c": (40,), "head": (1, 8)}


def test_weights_are_in_files_of_at_most_their_size_and_one_file_is_held_at_a_time(
    tmp_path: Path,
) -> None:
    given: list[weakref.ref[torch.Tensor]] = []

    def gather(shapes: Shapes) -> dict[str, torch.Tensor]:
        assert not [each for each in given if each() is not None], "those of the file before"
        made = {name: torch.full(shape, float(len(name))) for name, shape in shapes.items()}
        given.extend(map(weakref.ref, made.values()))
        return made

    write_weights(SHAPES, gather, tmp_path, torch.float32, {"head": "score"}, file_bytes=64 * 4)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert [sorted(load_file(file)) for file in files] == [["a", "b"], ["c", "score"]]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        name: files[number].name for name, number in (("a", 0), ("b", 0), ("c", 1), ("score", 1))
    }
    assert index["metadata"] == {"total_parameters": 112, "total_size": 448}


def test_a_rank_whose_disk_is_full_gathers_as_often_and_the_model_can_be_written_later(
    tmp_path: Path,
) -> None:
    """Otherwise the other ranks would wait in a collective for ever."""
    asked: list[list[str]] = []

    def gather(shapes: Shapes) -> dict[str, torch.Tensor]:
        asked.append(list(shapes))
        return {name: torch.zeros(1 << 19) for name in shapes}

    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        with pytest.raises(SafetensorError) as full:
            write_weights(SHAPES, gather, disk.seen, torch.float32, {}, file_bytes=64 * 4)
        assert is_disk_full(full.value)
        disk.resize(16)
        write_weights(SHAPES, gather, disk.seen, torch.float32, {}, file_bytes=64 * 4)
        assert asked == [["a", "b"], ["c", "head"]] * 2
        assert len(list(disk.seen.glob("*.safetensors"))) == 2


def test_a_rank_that_does_not_write_gathers_as_often_and_writes_nothing(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def gather(shapes: Shapes) -> dict[str, torch.Tensor]:
        asked.append(list(shapes))
        return {}

    write_weights(SHAPES, gather, tmp_path, torch.bfloat16, {}, writes=False, file_bytes=64 * 2)
    assert asked == [["a", "b"], ["c", "head"]] and not list(tmp_path.iterdir())


def test_a_family_without_a_classifier_is_refused_by_name(tmp_path: Path) -> None:
    class Unknown(T5Config):  # type: ignore[misc]
        model_type = "unheard-of"

    with pytest.raises(UnsupportedModel, match="'unheard-of'"):
        write_configs(Unknown(), tmp_path, tmp_path, torch.float32, is_scalar=True)


@pytest.mark.parametrize("listed", [{"eos_token_id": 1, "temperature": 0.9}, None])
def test_a_saved_model_lists_the_end_token_of_its_template(
    tmp_path: Path, listed: dict[str, object] | None
) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    write_base_tokenizer(source)
    saved.mkdir()
    if listed is not None:
        (source / "generation_config.json").write_text(json.dumps(listed))
    write_configs(LlamaConfig(), source, saved, torch.float32, is_scalar=False)
    written = json.loads((saved / "generation_config.json").read_text())
    assert written["eos_token_id"] == [1, END]
    assert written.get("temperature") == (None if listed is None else 0.9)
    # Training goes on with the same end tokens.
    copy_tokenizer(source, saved)
    tokenizer = TextTokenizer(saved)
    assert (tokenizer.end_token_ids[:2], tokenizer.template_end) == ((1, END), None)


def test_a_broken_tokenizer_does_not_stop_a_save(tmp_path: Path) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    write_base_tokenizer(source, "{% for %}")
    saved.mkdir()
    (source / "generation_config.json").write_text('{"eos_token_id": 1}')
    write_configs(LlamaConfig(), source, saved, torch.float32, is_scalar=False)
    assert (saved / "generation_config.json").read_text() == '{"eos_token_id": 1}'
