"""What of a job's models is measured, and the configs of parts of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_api.reading.manifest import load_jobs
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_runtime.models.errors import ModelNotFound
from rlhf_runtime.profiling.job_subjects import job_subjects
from rlhf_runtime.profiling.subjects import (
    Subject,
    generation_layers,
    merged,
    rank_config,
    training_layers,
    write_part,
)
from rlhf_sizing.config import read_shape
from rlhf_sizing.shape import DecoderShape

JOB = """
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {{name: sort}}
spec:
  algorithm: {{type: PPO}}
  models: {{actor: {{source: {{{source}}}, training: {{{training}}}}}}}
  data: {{train: {{builtin: SortDigits}}}}
  rewards: [{{function: {{entrypoint: "verifiers:exact"}}}}]
  schedule: {{steps: 3, promptsPerStep: 8}}
  rollout: {{samplesPerPrompt: 2, maxPromptTokens: 8, maxResponseTokens: 8{rollout}}}
"""
SHAPE = DecoderShape(4, 64, 128, 4, 2, 16, vocab_size=100)


def job(source: str = "builtin: TinyLlama", training: str = "", rollout: str = "") -> RLHFJob:
    text = JOB.format(source=source, training=training, rollout=rollout)
    (found,) = load_jobs(text, "job.yaml")
    return found


def a_subject(**changes: object) -> Subject:
    subject = Subject(
        name="actor",
        folder=Path("model"),
        shape=SHAPE,
        precision=Precision.FLOAT32,
        tensor=1,
        computes=True,
        generates=False,
        micro_batch_tokens=64,
        max_sequences=8,
        max_positions=128,
    )
    return replace(subject, **changes)  # type: ignore[arg-type]


def test_roles_with_one_model_are_measured_once(tmp_path: Path) -> None:
    """Actor and critic are of one shape; the actor generates, too."""
    (found,) = job_subjects(job(training="microBatchTokens: 64"), Device.CPU, tmp_path)
    assert found.name == "actor, critic"
    assert found.computes and found.generates
    assert (found.micro_batch_tokens, found.tensor) == (64, 1)
    assert found.precision is Precision.FLOAT32 and found.max_positions == 2048
    assert (found.folder / "config.json").is_file()


def test_other_parts_of_layers_are_measured_apart(tmp_path: Path) -> None:
    cut = job(rollout=", parallelism: {tensor: 2}")
    training, generation = job_subjects(cut, Device.CPU, tmp_path)
    assert (training.tensor, training.computes, training.generates) == (1, True, False)
    assert (generation.tensor, generation.computes, generation.generates) == (2, False, True)


def test_a_config_without_weights_is_enough(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64}
    config |= {"intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 100}
    config |= {"max_position_embeddings": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (found,) = job_subjects(job(f"path: {tmp_path}"), Device.CPU, tmp_path / "work")
    assert found.folder == tmp_path and found.shape.num_layers == 4
    assert found.max_positions == 2048


def test_a_model_that_is_not_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"got some/model .*`hf download some/model config"):
        job_subjects(job("huggingFace: some/model"), Device.CPU, tmp_path)


def test_merging_keeps_the_most_that_is_asked() -> None:
    others = [a_subject(name="critic", micro_batch_tokens=256), a_subject(generates=True)]
    (found,) = merged([a_subject(), *others])
    assert found == a_subject(name="actor, critic", micro_batch_tokens=256, generates=True)
    assert len(merged([a_subject(), a_subject(tensor=2)])) == 2


def test_a_part_has_a_share_of_heads_and_widths(tmp_path: Path) -> None:
    """Two key heads for four ranks: each has one. 100 tokens are padded to 128 rows."""
    config = {"model_type": "llama", "eos_token_id": 99, "num_hidden_layers": 4}
    part = rank_config(config, SHAPE, 4, 2)
    assert (part["num_attention_heads"], part["num_key_value_heads"]) == (1, 1)
    assert (part["intermediate_size"], part["head_dim"]) == (32, 16)
    assert part["vocab_size"] == 32 and part["eos_token_id"] is None
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    folder = write_part(a_subject(folder=tmp_path, tensor=4), 2, tmp_path / "part")
    shape = read_shape(folder, "")
    assert (shape.num_layers, shape.hidden_size, shape.head_dim) == (2, 64, 16)


def test_kinds_of_layers_are_as_many_as_layers() -> None:
    config = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    assert rank_config(config, SHAPE, 1, 3)["layer_types"] == [
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]


def test_few_layers_are_built_of_a_large_model() -> None:
    """A block of 7 GB with its state: one of them; else three, or all that there are."""
    wide = replace(SHAPE, hidden_size=8192, intermediate_size=16384)
    assert training_layers(a_subject(shape=wide)) == 1
    assert training_layers(a_subject()) == 3
    assert training_layers(a_subject(shape=replace(SHAPE, num_layers=2))) == 2
    assert generation_layers(a_subject(shape=wide)) == 2
    assert generation_layers(a_subject()) == 9
