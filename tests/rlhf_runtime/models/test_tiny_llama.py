from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_runtime.models import tiny_llama as tiny_llama_module
from rlhf_runtime.models.tiny_llama import tiny_llama_folder


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_transformers_loads_every_weight(tiny_llama: Path) -> None:
    model, loaded = AutoModelForCausalLM.from_pretrained(tiny_llama, output_loading_info=True)
    assert not any(loaded.values())
    assert sum(weight.numel() for weight in model.parameters()) == 541_312
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tiny_llama)) == 64
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 1
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()


def test_weights_are_drawn_as_transformers_draws_them(tiny_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    peer = AutoModelForCausalLM.from_config(model.config)
    for (name, weight), other in zip(model.named_parameters(), peer.parameters(), strict=True):
        assert weight.shape == other.shape, name
        assert weight.mean().item() == pytest.approx(other.mean().item(), abs=2e-3), name
        assert weight.std().item() == pytest.approx(other.std().item(), abs=1e-3), name


def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path: Path, tiny_llama: Path) -> None:
    assert digest(tiny_llama_folder(0, tmp_path)) == digest(tiny_llama)
    assert digest(tiny_llama_folder(1, tmp_path)) != digest(tiny_llama)


def test_it_is_written_once(tmp_path: Path) -> None:
    first = tiny_llama_folder(0, tmp_path)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert tiny_llama_folder(0, tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_many_may_ask_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(lambda _: tiny_llama_folder(0, tmp_path), range(4)))
    assert list(tmp_path.iterdir()) == list(folders)


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(tiny_llama_module, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        tiny_llama_folder(0, tmp_path)
    assert list(tmp_path.iterdir()) == []
