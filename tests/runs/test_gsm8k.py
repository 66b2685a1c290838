"""Example 03 with a tiny chat model in a local hub cache, on small files in the form of GSM8K."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhf_runtime.data.character_tokenizer import TOKENS, write_tokenizer

from .cli import EXAMPLES, Finished, run
from .manifests import write_rows
from .records import records, step_metrics

pytestmark = pytest.mark.ray

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- "<" + message.role + ">" + message.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""
STEPS = 2


def problems(count: int, first: int) -> list[dict[str, Any]]:
    """Rows in the form of GSM8K."""
    return [
        {
            "question": f"anna has {n} apples and buys {n + 1}. how many has she?",
            "answer": f"{n} + {n + 1} = <<{n}+{n + 1}={2 * n + 1}>>{2 * n + 1}\n#### {2 * n + 1}",
        }
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hub cache with a tiny model under the example's id."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "models--Qwen--Qwen2.5-0.5B-Instruct"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(snapshot)
    write_tokenizer(snapshot)
    (snapshot / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return cache


@pytest.fixture(scope="module")
def finished(scratch: Path, hub: Path) -> Finished:
    """Run the example; only sizes, data and its pool are changed on the command line."""
    train = write_rows(scratch / "gsm8k-train.jsonl", problems(12, first=2))
    evaluation = scratch / "gsm8k-test.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(problems(3, first=50)), evaluation)
    manifest = Path(shutil.copy(next(EXAMPLES.glob("03-*.yaml")), scratch / "gsm8k.yaml"))
    overrides = {
        "data.train.path": train,
        "data.train.huggingFace": "null",
        "data.train.configuration": "null",
        "data.evaluation.path": evaluation,
        "data.evaluation.huggingFace": "null",
        "data.evaluation.configuration": "null",
        "schedule.promptsPerStep": 4,
        "schedule.miniBatchPrompts": 2,
        "rollout.samplesPerPrompt": 4,
        "rollout.maxResponseTokens": 48,
    }
    changes = [f"--set=spec.{path}={value}" for path, value in overrides.items()]
    return run(
        manifest,
        scratch / "gsm8k",
        *("--steps", STEPS, "--devices", 1),
        *changes,
        HF_HUB_CACHE=str(hub),
        HF_HUB_OFFLINE="1",
    )


def test_it_trains_on_rows_and_a_model_of_that_form(finished: Finished) -> None:
    assert finished.code == 0, finished.output
    steps = step_metrics(finished.folder)
    assert len(steps) == STEPS
    for metrics in steps:
        assert metrics["score/invalid"] == 0, "the verifier finds every reference's answer"
        assert metrics["actor/log_prob_difference_max"] < 1e-3
        assert abs(metrics["actor/kl"]) < 1
    evaluations = records(finished.folder, "evaluation")
    assert [record["step"] for record in evaluations] == [0, STEPS]


def test_what_means_nothing_here_is_named(finished: Finished) -> None:
    assert "spec.resources is for clusters" in finished.output


def test_its_model_keeps_the_chat_template_and_the_tokenizer(finished: Finished) -> None:
    model = finished.folder / "model"
    assert (model / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert (model / "tokenizer.json").is_file()
    config = json.loads((model / "config.json").read_text())
    assert config["tie_word_embeddings"] and config["model_type"] == "qwen2"
