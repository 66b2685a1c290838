"""Parameter counts against published ones; shapes from every source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.spec.models import BuiltinModel
from rlhf_flow.errors import NoScores, ShapeUnknown
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS, WELL_KNOWN_MODELS, resolve_shape
from rlhf_sizing.config import hub_cache

PUBLISHED = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-pt": 999_885_952,
}
"""Elements of the tensors of each published checkpoint, shared ones counted once."""

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameter_counts_are_the_published_ones(name: str, count: int) -> None:
    assert WELL_KNOWN_MODELS[name].num_parameters == count


def test_every_known_shape_has_a_published_count() -> None:
    assert {shape.num_parameters for shape in WELL_KNOWN_MODELS.values()} == set(PUBLISHED.values())


def test_known_models_are_of_the_family_that_their_configuration_names() -> None:
    families = {
        "meta-llama/Llama": "llama",
        "mistralai/Mistral": "mistral",
        "Qwen/Qwen2.5": "qwen2",
        "Qwen/Qwen3": "qwen3",
        "google/gemma-2": "gemma2",
        "google/gemma-3": "gemma3_text",
    }
    for name, shape in WELL_KNOWN_MODELS.items():
        (expected,) = {family for start, family in families.items() if name.startswith(start)}
        assert shape.family == expected, name
    assert {shape.family for shape in BUILTIN_MODELS.values()} == {"llama"}


def test_tiny_llama_has_half_a_million_parameters() -> None:
    shape = BUILTIN_MODELS[BuiltinModel.TINY_LLAMA]
    assert shape.num_parameters == 541_312
    assert shape.num_critic_parameters == 541_312 - 64 * 128 + 128


def write_config(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG | changes))


def job_with(job: Any, **model: Any) -> Any:
    return job(models={"actor": model})


def test_a_folder_is_read(job: Any, tmp_path: Path) -> None:
    write_config(tmp_path / "model")
    made = job_with(job, source={"path": str(tmp_path / "model")})
    found = resolve_shape(made, "actor", tmp_path)
    assert found == WELL_KNOWN_MODELS["meta-llama/Llama-3.1-8B"] and found.family == "llama"


def test_a_rewards_model_has_to_give_scores(job: Any, tmp_path: Path) -> None:
    write_config(tmp_path / "model", architectures=["LlamaForCausalLM"])
    made = job(rewards=[{"name": "learned", "model": {"path": str(tmp_path / "model")}}])
    with pytest.raises(NoScores, match="that gives no scores: got .*model with LlamaForCausalLM"):
        resolve_shape(made, "learned_model", tmp_path)
    for named in (["LlamaForSequenceClassification"], None):
        write_config(tmp_path / "model", architectures=named)
        assert resolve_shape(made, "learned_model", tmp_path).num_layers == 32


def test_a_downloaded_model_wins_over_the_table(job: Any, tmp_path: Path) -> None:
    repository = tmp_path / "models--meta-llama--Llama-3.1-8B"
    write_config(repository / "snapshots" / "abc", num_hidden_layers=2)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    made = job_with(job, source={"huggingFace": "meta-llama/Llama-3.1-8B"})
    assert resolve_shape(made, "actor", tmp_path).num_layers == 2
    pinned = {"huggingFace": "meta-llama/Llama-3.1-8B", "revision": "abc"}
    assert resolve_shape(job_with(job, source=pinned), "actor", tmp_path).num_layers == 2
    assert resolve_shape(made, "actor", tmp_path / "empty").num_layers == 32


def test_a_given_shape_wins_over_everything(job: Any, tmp_path: Path) -> None:
    shape = {
        "numLayers": 3,
        "hiddenSize": 8,
        "intermediateSize": 16,
        "numAttentionHeads": 2,
        "numKeyValueHeads": 1,
        "headDim": 4,
        "vocabSize": 10,
    }
    made = job_with(job, source={"huggingFace": "meta-llama/Llama-3.1-8B"}, shape=shape)
    assert resolve_shape(made, "actor", tmp_path).num_layers == 3
    assert resolve_shape(made, "reference", tmp_path).num_layers == 3


def test_a_folder_in_the_place_of_an_id_is_understood(job: Any, tmp_path: Path) -> None:
    made = job_with(job, source={"huggingFace": "./model"})
    with pytest.raises(
        ShapeUnknown, match=r"got an id .*write source: \{path: \./model\}"
    ) as caught:
        resolve_shape(made, "actor", tmp_path)
    assert caught.value.location == ("spec", "models", "actor", "source", "huggingFace")


def test_another_role_takes_the_shape_of_its_origin(job: Any, tmp_path: Path) -> None:
    source = {"huggingFace": "Qwen/Qwen2.5-7B"}
    models = {"actor": {"source": source}, "critic": {"source": {"sameAs": "actor"}}}
    made = job(models=models, algorithm={"type": "PPO"})
    for role in ("critic", "reference"):
        assert resolve_shape(made, role, tmp_path) == WELL_KNOWN_MODELS["Qwen/Qwen2.5-7B"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "got model_type 'mixtral'.*allowed .*llama"),
        ({"hidden_size": None}, "hidden_size None"),
        ({"num_hidden_layers": 10**9}, "larger than there are: got .* parameters by .*config.json"),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers '32'"),
    ],
)
def test_a_configuration_that_is_not_understood_is_refused(
    job: Any, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_config(tmp_path, **changes)
    with pytest.raises(ShapeUnknown, match=message) as caught:
        resolve_shape(job_with(job, source={"path": str(tmp_path)}), "actor", tmp_path)
    assert "spec.models.actor.shape" in str(caught.value)
    assert caught.value.exit_code is ExitCode.MANIFEST
    assert caught.value.reason == "PlanUnknown"


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_configuration_is_refused(job: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ShapeUnknown, match="not a"):
        resolve_shape(job_with(job, source={"path": str(tmp_path)}), "actor", tmp_path)


def test_unknown_models_say_how_to_fill_the_shape_in(job: Any, tmp_path: Path) -> None:
    with pytest.raises(ShapeUnknown, match="no readable .*config.json"):
        resolve_shape(job_with(job, source={"path": str(tmp_path / "x")}), "actor", tmp_path)
    with pytest.raises(ShapeUnknown, match="some/model are not known.*spec.models.actor.shape"):
        resolve_shape(job_with(job, source={"huggingFace": "some/model"}), "actor", tmp_path)


def test_old_configurations_have_defaults(job: Any, tmp_path: Path) -> None:
    write_config(tmp_path, num_key_value_heads=None, tie_word_embeddings=True)
    shape = resolve_shape(job_with(job, source={"path": str(tmp_path)}), "actor", tmp_path)
    assert (shape.num_key_value_heads, shape.head_dim, shape.tied_embeddings) == (32, 128, True)


def test_the_hub_cache_is_where_the_hub_library_keeps_it() -> None:
    home = Path("/h")
    assert hub_cache({"HF_HUB_CACHE": "/c", "HF_HOME": "/x"}, home) == Path("/c")
    assert hub_cache({"HF_HOME": "/x"}, home) == Path("/x/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/y"}, home) == Path("/y/huggingface/hub")
    assert hub_cache({}, home) == Path("/h/.cache/huggingface/hub")
