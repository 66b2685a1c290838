"""`rlhf evaluate` before it starts anything: its model, its job, its plan, its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, Pool
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import ModelSource
from rlhf_api.spec.resources import Device
from rlhf_cli.app import app
from rlhf_cli.evaluated_model import find_model
from rlhf_cli.evaluation import metric_rows
from rlhf_cli.evaluation_job import evaluation_job
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.jobs.evaluation_graphs import trace_evaluation
from rlhf_flow.jobs.job_graphs import trace_algorithms
from rlhf_planner.plan import plan_job, resolve_shapes
from rlhf_planner.problem.devices import gpu_inventory, local_inventory
from rlhf_runtime.data.load import DataUse, sources_in_use
from rlhf_runtime.models.errors import ModelIncomplete, ModelNotFound
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.telemetry.records import (
    EndRecord,
    Outcome,
    ResumedRecord,
    RunRecord,
    StepRecord,
)
from rlhf_runtime.telemetry.run_folder import RunFolder

EXAMPLES = Path(__file__).parents[2] / "examples"
EVALUATED = sorted(path for path in EXAMPLES.glob("*.yaml") if "reward-model" not in path.name)
GIB = 1 << 30
POOLS = {
    "one rank": local_inventory(1, 16 * GIB),
    "four ranks": local_inventory(4, 64 * GIB),
    "two GPUs": gpu_inventory([80 * GIB] * 2, None, "H100"),
    "unknown GPU": gpu_inventory([80 * GIB], None, None),
}
# The learned reward of an example is the model that another one trains.
SHAPE = (
    "spec.rewards[0].model.shape={numLayers: 2, hiddenSize: 64, intermediateSize: 64, "
    "numAttentionHeads: 4, numKeyValueHeads: 4, headDim: 16, vocabSize: 64}"
)
MODEL = ModelSource(builtin="TinyLlama")


def job_of(file: Path, *changes: str) -> RLHFJob:
    (job,) = load_file(file, changes)
    return job


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS.keys())
@pytest.mark.parametrize("file", EVALUATED, ids=lambda path: path.stem)
def test_only_what_evaluation_needs_is_planned(file: Path, pool: Pool) -> None:
    manifest = job_of(file, *([SHAPE] if "learned-reward" in file.name else []))
    job = evaluation_job(manifest, "actor", MODEL)
    graphs = {name: traced.graph for name, traced in trace_evaluation(job).items()}
    plan = plan_job(job, graphs, [pool], resolve_shapes(job, graphs))
    models = {reward.model_role for reward in job.spec.rewards if reward.model is not None}
    assert plan.policy == "actor" and {role.role for role in plan.roles if role.head} == {
        "actor",
        *models,
    }
    assert not any(role.is_trained or role.is_saved for role in plan.roles)
    assert [generation.role for generation in plan.generations] == ["actor"]
    assert plan.generations[0].fusion is None
    # The evaluation is that of the training job.
    trained = trace_algorithms(manifest)[GraphName.EVALUATION]
    assert graphs[GraphName.EVALUATION] == trained.graph
    use = DataUse.from_graphs(plan.inputs, trains=False)
    assert [split.value for split in sources_in_use(job.spec, use)] == ["evaluation"]


def test_what_numbers_depend_on_stays_and_training_goes() -> None:
    manifest = job_of(
        EXAMPLES / "02-sort-ppo.yaml",
        "spec.schedule.seed=7",
        "spec.schedule.earlyStop.patience=2",
        "spec.placement={type: Standalone}",
        "spec.models.actor.training.precision=bfloat16",
        "spec.models.critic.training={engine: Megatron, parallelism: {tensor: 4}}",
        "spec.rollout.maxConcurrentSequences=9",
        "spec.checkpoint.storage.uri=s3://bucket/sort",
    )
    job = evaluation_job(manifest, "actor", ModelSource(path="/models/mine"))
    same = ("algorithm", "data", "rewards", "code", "env")
    assert all(getattr(job.spec, name) == getattr(manifest.spec, name) for name in same)
    assert job.spec.models["actor"].source == ModelSource(path="/models/mine")
    assert job.spec.models["actor"].training.precision.value == "bfloat16"
    assert job.spec.models["actor"].training.learning_rate != 2e-4
    assert job.spec.models["critic"].training.parallelism.num_ranks == 1
    assert job.spec.schedule.seed == 7 and job.spec.schedule.early_stop is None
    assert job.spec.schedule.warm_start is None and job.spec.checkpoint.storage is None
    unfused = manifest.spec.rollout.model_copy(
        update={"stage_fusion": job.spec.rollout.stage_fusion}
    )
    assert job.spec.rollout == unfused


def test_a_policy_without_an_entry_of_its_own_has_the_actors_source() -> None:
    job = evaluation_job(job_of(EXAMPLES / "01-sort-grpo.yaml"), "student", MODEL)
    assert job.spec.models["actor"].source == MODEL


def test_a_job_without_held_out_prompts_or_answers_is_refused() -> None:
    changes = ("spec.data.train={path: /rows.jsonl}", "spec.schedule.warmStart=null")
    with pytest.raises(ManifestError, match=r"spec\.data\.evaluation: no evaluation data"):
        trace_evaluation(job_of(EXAMPLES / "01-sort-grpo.yaml", *changes))
    (file,) = EXAMPLES.glob("*reward-model*")
    with pytest.raises(InvalidAlgorithm, match=r"got RewardModel, whose reward_model gives numb"):
        trace_evaluation(job_of(file), Device.CPU)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama_folder(0, tmp_path / "models")


def a_run(folder: Path, *steps: int) -> RunFolder:
    with RunFolder(folder) as run:
        run.append(RunRecord("sort", "GRPO", "1 CPU rank", str(folder), 9, 0.0))
        run.append(ResumedRecord(2))
        for step in steps:
            run.append(StepRecord(step, {}, {}, 1.0, 1))
        run.append(EndRecord(Outcome.SUCCEEDED, 1.0))
    return run


def test_a_model_is_a_folder_or_that_of_a_run_with_its_last_step(
    model: Path, tmp_path: Path
) -> None:
    found = find_model(str(model))
    assert (found.source, found.step) == (ModelSource(path=str(model.resolve())), 0)
    run = a_run(tmp_path / "run", 3, 4)
    with pytest.raises(ModelNotFound, match=r"a run without a final model.*rlhf export"):
        find_model(str(run.path))
    model.rename(run.model)
    for text in (run.path, run.model):
        found = find_model(str(text))
        assert (found.source, found.step) == (ModelSource(path=str(run.model.resolve())), 4)
    for step in (3, 0):  # step 0: the model of the warm start
        with RunFolder(tmp_path / "run") as best:
            best.append(EndRecord(Outcome.SUCCEEDED, 1.0, model_step=step))
        assert find_model(str(run.path)).step == step


def test_other_models_are_those_of_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model("TinyLlama").source == MODEL
    assert find_model("gpt2").source == ModelSource(hugging_face="gpt2")
    for revision in ("main", "refs/pr/1"):
        assert find_model(f"Qwen/Qwen2.5-0.5B@{revision}").source == ModelSource(
            hugging_face="Qwen/Qwen2.5-0.5B", revision=revision
        )


def test_an_id_whose_owner_is_a_folder_here_needs_a_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    with pytest.raises(ModelNotFound, match=r"write Qwen/Qwen3-8B@main for the id"):
        find_model("Qwen/Qwen3-8B")
    assert find_model("Qwen/Qwen3-8B@main").source.hugging_face == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "text", ["./none", "/none", "~/none", "~nobody-here/a", "a/b/c", "here/none", "file"]
)
def test_a_path_without_a_model_is_no_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ModelNotFound, match=f"no such model: got {text}"):
        find_model(text)


def test_an_incomplete_folder_and_a_checkpoint_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelIncomplete, match="not a complete model"):
        find_model(str(tmp_path))
    checkpoint = tmp_path / "step-00000003"
    checkpoint.mkdir()
    with pytest.raises(ModelNotFound, match=r"a checkpoint, allowed.*rlhf export"):
        find_model(str(checkpoint))


def test_rows_have_a_cell_for_every_source() -> None:
    metrics = {
        "evaluation/reward_mean": 0.5,
        "evaluation/pass_at_4": 1.0,
        "evaluation/easy/reward_mean": 0.75,
        "evaluation/hard/reward_mean": 1 / 3,
    }
    assert metric_rows(metrics, ("easy", "hard")) == [
        ("reward_mean", "0.5", "0.75", "0.33333"),
        ("pass_at_4", "1", "", ""),
    ]


def refused(code: int, *words: object) -> str:
    """Standard error of `rlhf evaluate`, which exits with a code."""
    result = CliRunner().invoke(app, ["evaluate", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stderr


def test_a_runs_folder_is_not_written_over(model: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", 3)
    before = run.metrics.read_bytes()
    told = refused(2, model, EXAMPLES / "01-sort-grpo.yaml", "--output", run.path, "--devices", 1)
    assert "FolderUnusable: the folder holds a run" in told
    assert run.metrics.read_bytes() == before


def test_a_models_folder_is_not_written_into(model: Path) -> None:
    before = sorted(model.iterdir())
    told = refused(2, model, EXAMPLES / "01-sort-grpo.yaml", "--output", model)
    assert "FolderUnusable: the folder holds a model" in told
    assert sorted(model.iterdir()) == before


def test_a_model_whose_tokenizer_does_not_fit_is_refused(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["vocab_size"] -= 4
    (model / "config.json").write_text(json.dumps(config))
    told = refused(3, model, EXAMPLES / "01-sort-grpo.yaml", "--output", tmp_path / "out")
    assert "VocabularyMismatch" in told
    assert "the tokenizer of actor has more tokens than its model" in told
    assert not (tmp_path / "out").exists()


def test_a_manifest_with_mistakes_is_refused_with_their_lines(model: Path) -> None:
    told = refused(2, model, EXAMPLES / "01-sort-grpo.yaml", "--set", "spec.schedule.steps=none")
    assert "spec.schedule.steps" in told
