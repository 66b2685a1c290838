"""`rlhf plan`: forms of output, exit codes, custom code, no heavy imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from rlhf_api.plan import Plan
from rlhf_cli.app import app

JOB = """
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {{name: {name}}}
spec:
  algorithm: {algorithm}
  models: {{actor: {{source: {{{source}}}}}}}
  data: {{train: {{builtin: SortDigits}}}}
  rewards: [{{function: {{entrypoint: "verifiers:exact"}}}}]
  schedule: {{steps: 3, promptsPerStep: 8}}
  rollout: {{samplesPerPrompt: 2, maxPromptTokens: 8, maxResponseTokens: 8}}
"""


def job(
    name: str = "sort", algorithm: str = "{type: GRPO}", source: str = "builtin: TinyLlama"
) -> str:
    return JOB.format(name=name, algorithm=algorithm, source=source)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A file with one job."""
    path = tmp_path / "job.yaml"
    path.write_text(job())
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_table_shows_calls_memory_and_reasons(manifest: Path) -> None:
    code, out, _ = run(str(manifest), "--devices", "2")
    assert code == 0
    assert "sort: 1 x 2 CPU (pool local), 2 generation engines of 1 rank" in out
    for text in ("actor.generate", "reward.score", "actor.train", "host", "actor KVCache"):
        assert text in out
    assert "Sum in each phase" in out and "calls take turns" in out


def test_roles_show_their_engine_and_how_they_are_cut(manifest: Path) -> None:
    cut = "training: {engine: Megatron, parallelism: {tensor: 2, pipeline: 2}}"
    text = job(algorithm="{type: PPO}")
    model = "{source: {builtin: TinyLlama}"
    cut_model = f"{model}, {cut}}}, critic: {{source: {{sameAs: actor}}"
    manifest.write_text(text.replace(model, cut_model))
    code, out, _ = run(str(manifest), "--devices", "8")
    assert code == 0
    before, after = out.split("Calls", 1)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in before.splitlines()]
    assert [row for row in rows if row] == [
        ["actor", "Megatron", "0-7", "2", "2", "2", "541,312", "float32", "kept", "4096"],
        ["critic", "FSDP", "0-7", "8", "1", "1", "533,248", "float32", "kept", "4096"],
    ]
    (train,) = (line for line in after.splitlines() if "actor.train" in line and "Train" in line)
    assert [cell.strip() for cell in train.split("│")[4:8]] == ["0-7", "2", "2", "2"]
    code, _, told = run(str(manifest), "--devices", "6")
    assert code == 2 and "got 6 for copies on tensor 2 x pipeline 2 = 4" in told
    manifest.write_text(manifest.read_text().replace("pipeline: 2", "pipeline: 3"))
    code, _, told = run(str(manifest), "--devices", "6")
    assert code == 2 and f"{manifest}:7:" in told and "2 layers / 3 = 0.6667" in told


def test_engines_of_several_ranks_show_which_and_why(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(job().replace("rollout: {", "rollout: {parallelism: {tensor: 2}, "))
    code, out, _ = run(str(path), "--devices", "4")
    assert code == 0 and "2 generation engines of 2 ranks {0,2}, {1,3} for actor" in out
    assert "- engines of actor are ranks {0,2}, {1,3}, which train " in out
    code, out, _ = run(str(path), "--devices", "2")
    assert code == 0 and "1 generation engine of 2 ranks for actor" in out


def test_a_transition_to_other_devices_shows_both(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    trained, generation = "{roles: [actor], devices: 2}", "{roles: [actor], calls: [Generate]"
    groups = f"[{trained}, {generation}, firstDevice: 2, tensor: 2}}]"
    path.write_text(job() + f"  placement: {{type: Manual, groups: {groups}}}\n")
    code, out, _ = run(str(path), "--devices", "4")
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    where = {row[2]: row[4:8] for row in rows if len(row) > 8 and row[1] == "Step"}
    assert code == 0 and where["actor.reshard"] == ["0-1 to 2-3", "1", "2", "1"]
    assert where["actor.train"][0] == "0-1" and where["actor.generate"][0] == "2-3"
    assert "devices 2 to 3 of pool local: generation of actor, as placement.groups says" in out


def test_what_a_step_saves_is_a_file_that_the_driver_writes(manifest: Path) -> None:
    manifest.write_text(job(algorithm="{type: OnlineDPO, onlineDPO: {savePairs: true}}"))
    code, out, _ = run(str(manifest), "--devices", "2")
    (line,) = (line for line in out.splitlines() if " save " in line and "│" in line)
    assert code == 0 and "driver" in line and "lines -> a file" in line


PLACED = "  placement: {{type: Manual, groups: [{{roles: [actor]}}, {{roles: [critic], {}}}]}}\n"


@pytest.mark.parametrize(
    ("critic", "head", "where", "groups"),
    [
        (
            "firstDevice: 1",
            "sort: 1 x 2 CPU (pool local), 2 generation engines of 1 rank for actor",
            ["0-1", "1", "host"],
            ["device 0 of pool local", "device 1 of pool local"],
        ),
        (
            "pool: critics",
            "sort: 1 x 1 CPU (pool actors), 1 x 1 CPU (pool critics), 1 generation engine",
            ["actors 0", "critics 0", "host"],
            ["device 0 of pool actors", "device 0 of pool critics"],
        ),
    ],
    ids=["groups in a pool", "two pools"],
)
def test_groups_show_where_calls_are_and_the_memory_of_each(
    tmp_path: Path, critic: str, head: str, where: list[str], groups: list[str]
) -> None:
    path, placement = tmp_path / "job.yaml", PLACED.format(critic)
    if "pool" in critic:
        placement = placement.replace("[actor]", "[actor], pool: actors")
    path.write_text(job(algorithm="{type: PPO}") + placement)
    code, out, err = run(str(path), "--devices", "2")
    assert code == 0, err
    assert head in out
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    devices = {row[2]: row[4] for row in rows if len(row) > 8 and row[1] == "Step"}
    calls = ("actor.train", "critic.train", "reward.score")
    assert [devices[call] for call in calls] == where
    for group in groups:
        assert f"Memory of {group}" in out and f"Sum in each phase on {group}" in out
        assert f"- {group}: " in out


def test_a_group_that_leaves_a_role_out_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(job(algorithm="{type: PPO}") + PLACED.format("").replace("critic", "critics"))
    code, out, err = run(str(path))
    assert (code, out) == (2, "")
    assert err.startswith("InvalidPlacement: ") and "did you mean critic?" in err


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_data_forms_are_the_plan_and_always_the_same(manifest: Path, form: str) -> None:
    code, out, _ = run(str(manifest), "--devices", "2", "-o", form)
    assert code == 0
    document = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert Plan.model_validate(document).pools[0].num_devices == 2
    assert run(str(manifest), "--devices", "2", "-o", form)[1] == out


def test_overrides_are_planned_as_they_would_run(manifest: Path) -> None:
    penalty = "spec.algorithm={type: GRPO, grpo: {klCoefficient: 0.1}}"
    code, output, _ = run(str(manifest), "-o", "graph", "--set", penalty)
    assert code == 0 and "reference.log_probs" in output
    code, _, error = run(str(manifest), "--set", "spec.schedule.steps=none")
    assert code == 2
    assert "--set spec.schedule.steps=none: spec.schedule.steps: not an integer" in error


def test_the_graph_is_drawn(manifest: Path) -> None:
    code, out, _ = run(str(manifest), "-o", "graph")
    assert code == 0
    assert "sort: Step" in out and "sort: Evaluation" in out
    assert "<- actor.generate: prompt_id, response_tokens" in out


def test_all_jobs_of_a_file_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(job("one") + "---" + job("two"))
    code, out, _ = run(str(path), "-o", "yaml")
    assert code == 0
    assert [document["job"] for document in yaml.safe_load_all(out)] == ["one", "two"]


def test_an_unknown_model_ends_with_2_and_says_what_to_fill_in(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(job(source="huggingFace: nobody/nothing"))
    code, out, err = run(str(path))
    assert (code, out) == (2, "")
    assert err.startswith("PlanUnknown: ") and "spec.models.actor.shape" in err


def test_what_does_not_fit_ends_with_2_and_shows_the_sum(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    pool = "  resources: {nodePools: [{name: t4, gpu: T4, devicesPerNode: 1}]}\n"
    path.write_text(job(source="huggingFace: meta-llama/Llama-3.1-70B") + pool)
    code, _, err = run(str(path))
    assert code == 2
    assert err.startswith("DoesNotFit: ") and "sum" in err and "actor Optimizer" in err


ALGORITHM = """
from rlhf_flow import Algorithm, CrossEntropy, LanguageModel

class Mine(Algorithm):
    def roles(self):
        return {"actor": LanguageModel}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        flow.actor.train(batch, CrossEntropy())
        flow.actor.LAST(batch)
"""


@pytest.mark.parametrize(("last", "code"), [("log_probs", 0), ("dream", 3)])
def test_a_custom_algorithm_comes_from_local_code(tmp_path: Path, last: str, code: int) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / f"algorithm_{last}.py").write_text(ALGORITHM.replace("LAST", last))
    path = tmp_path / "job.yaml"
    entry = f"{{type: Custom, custom: {{entrypoint: 'algorithm_{last}:Mine'}}}}"
    path.write_text(job(algorithm=entry) + "  code: {local: code}\n")
    before = list(sys.path)
    found, out, err = run(str(path), "-o", "json")
    assert found == code, err
    assert sys.path == before
    if code:
        place = folder / f"algorithm_{last}.py"
        assert err.startswith(f"InvalidAlgorithm: {place}:11: actor has no primitive dream")
    else:
        assert "actor.log_probs" in out
        assert "warning: actor.log_probs makes what nothing reads" in err


PAIR = """
from rlhf_flow import *
from rlhf_flow.step.operations import Custom
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.dataplane.protocol import Protocol

FIRST = Protocol(lambda at: Slice(at.data, at.data_size), lambda at: at.rank == 0)


def rated(columns):
    return {}


class Mine(Algorithm):
    def roles(self):
        return {"actor": LanguageModel}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        rated = Custom(f"{__name__}:rated", [], ["rate"], protocol=f"{__name__}:FIRST")
        flow.every(10, lambda: flow.compute(batch, rated))
        flow.actor.train(batch, CrossEntropy())
"""


def test_a_protocol_of_ones_own_has_to_cover_the_rows(tmp_path: Path) -> None:
    """On one rank it does; on two the second one's rows are lost, in step 10."""
    (tmp_path / "own_pair.py").write_text(PAIR)
    path = tmp_path / "job.yaml"
    path.write_text(
        job(algorithm="{type: Custom, custom: {entrypoint: 'own_pair:Mine'}}")
        + "  code: {local: .}\n"
    )
    code, out, err = run(str(path), "--devices", "1", "-o", "graph")
    assert code == 0, err
    assert "own_pair:rated: over the rows of a prompt, cut by own_pair:FIRST" in out
    code, _, err = run(str(path), "--devices", "2", "-o", "graph")
    assert code == 3
    assert err.startswith(
        "UserCodeFailed: the protocol own_pair:FIRST collects the rows from 1/2 to 1 of a batch "
        "from no rank, on 2 ranks (data=2, tensor=1, pipeline=1): got rank 0: part 0 of 2, allowed"
    ), err


def test_a_reward_of_no_role_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = job().replace("rewards: [{", "rewards: [{role: rewad, ")
    path.write_text(text)
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "rewad" in each)
    code, _, err = run(str(path))
    assert code == 2
    assert f"{path}:{line}:20: spec.rewards[0].role: " in err and "did you mean reward?" in err


def test_expected_times_stand_beside_calls_and_in_a_timeline(manifest: Path) -> None:
    code, out, _ = run(str(manifest), "--devices", "2")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    times = {row[2]: row[8] for row in rows if len(row) == 11}
    assert re.fullmatch(r"[\d.]+ m?s", times["actor.train"]) and times["reward.score"] == ""
    assert re.search(r"Expected: \S+ m?s a step, [\d,]+ tokens/s, devices idle 0% of", out)
    assert "prompts of 4 and responses of 4 tokens on average" in out
    assert "no more than an order of magnitude" in out
    assert re.search(r"^local 0-1 +A+B+", out, re.MULTILINE) and "actor.generate" in out


def test_gpus_that_nobody_knows_have_no_times(tmp_path: Path) -> None:
    path, page = tmp_path / "job.yaml", tmp_path / "plan.html"
    pool = "{name: a, device: GPU, gpu: H900, memoryPerDevice: 80Gi}"
    path.write_text(job() + f"  resources: {{nodePools: [{pool}]}}\n")
    code, out, _ = run(str(path), "--html", str(page))
    assert code == 0 and "times are not estimated: " in out and "Expected" not in out
    assert "got gpu H900" in page.read_text() and "<svg" not in page.read_text()
    path.write_text(path.read_text().replace("H900", "H100"))
    code, out, _ = run(str(path))
    assert code == 0 and "from data sheets of H100" in out and "order of magnitude" not in out


def test_a_plan_is_compared_with_those_of_others_rules(tmp_path: Path) -> None:
    """In time, in memory of the fullest device, and in how many times as fast it is."""
    path = tmp_path / "job.yaml"
    pool = "{name: a, gpu: H100, devicesPerNode: 2, hardware: {networkGigabitsPerSecond: 100}}"
    path.write_text(job(algorithm="{type: PPO}") + f"  resources: {{nodePools: [{pool}]}}\n")
    code, out, _ = run(str(path))
    table = out[out.index("Compared with") :].splitlines()
    number = r"[\d.]+ (m?s|us)"
    assert code == 0 and "from data sheets of H100 (network as given)" in out
    assert re.fullmatch(rf"this plan +{number} +[\d.]+ GiB *", table[1])
    rows = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in table[2:] if line.strip())
    assert [*rows] == [
        *("Colocated", "Split", "Standalone"),
        *("Megatron heuristic", "ReaL heuristic", "HybridFlow"),
    ]
    for row in rows.values():
        speed_up = re.fullmatch(rf"{number} +[\d.]+ GiB +([\d.]+)x", row)
        assert speed_up is not None and float(speed_up[2]) >= 1


def test_an_objective_shows_the_sizes_that_were_compared(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    pool = "{name: a, gpu: H100, nodes: 2, devicesPerNode: 4}"
    objective = "{objective: {type: DeviceTime}}"
    path.write_text(job() + f"  resources: {{nodePools: [{pool}]}}\n  placement: {objective}\n")
    code, out, _ = run(str(path), "--explain", "actor.train")
    assert code == 0 and "sort: 1 x 1 GPU (pool a)" in out
    assert "1 of 8 devices (1 x 1 of pool a), as placement.objective DeviceTime says" in out
    table = out[out.index("On devices") :].splitlines()
    sizes = [line.split() for line in table[1:5]]
    assert [(row[0], " ".join(row[1:4])) for row in sizes] == [
        ("1", "1 x 1"),
        ("2", "1 x 2"),
        ("4", "1 x 4"),
        ("8", "2 x 4"),
    ]
    assert [line.rstrip().endswith("this plan") for line in table[1:5]] == [True, *3 * [False]]
    assert "activations recomputed" in out, "it is explained on the devices that it takes"


def test_an_objective_needs_times_and_says_so_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(job() + "  placement: {objective: {type: DeviceTime}}\n")
    code, _, err = run(str(path), "--devices", "2")
    text = " ".join(err.replace("│", " ").split())
    assert code == 2 and "job.yaml:12:33:" in text and "got device CPU" in text
    assert "write placement.objective.type: StepTime" in text


def test_a_page_has_the_timelines_of_all_jobs_of_a_file(tmp_path: Path) -> None:
    path, page = tmp_path / "jobs.yaml", tmp_path / "plan.html"
    path.write_text(job("one") + "---\n" + job("two", "{type: PPO}"))
    code, out, _ = run(str(path), "--devices", "2", "-o", "json", "--html", str(page))
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert code == 0 and len(pictures) == 2
    first, second = map(ElementTree.fromstring, pictures)
    assert "critic.train" not in "".join(first.itertext())
    assert "critic.train" in "".join(second.itertext())
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "") and "src=" not in text
    (plan, _) = (Plan.model_validate_json(each) for each in out.split("---\n"))
    assert plan.estimate is not None and "one" in text


def test_a_page_that_cannot_be_written_is_told(manifest: Path, tmp_path: Path) -> None:
    code, _, err = run(str(manifest), "--devices", "2", "--html", str(tmp_path / "no" / "a.html"))
    assert code == 2 and "the page cannot be written" in " ".join(err.replace("│", " ").split())


def test_planning_imports_neither_torch_nor_ray_nor_numpy(manifest: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rlhf_cli.commands.plan import plan; "
        f"plan(Path({str(manifest)!r}), 2); "
        "print(sorted({'torch', 'ray', 'numpy', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_call_is_explained_by_what_else_it_could_take(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    pool = "{name: a, device: GPU, gpu: H100, devicesPerNode: 2}"
    path.write_text(job() + f"  resources: {{nodePools: [{pool}]}}\n")
    code, out, _ = run(str(path), "--explain", "actor.train")
    assert code == 0 and "actor.train: devices 0 to " in out
    assert "activations recomputed" in out and "micro-batches of 1024 tokens" in out
    code, out, err = run(str(path), "--explain", "actor.trian")
    assert code == 2 and "got actor.trian, allowed actor." in err


def test_waits_for_tools_are_shown(tmp_path: Path) -> None:
    path, text = tmp_path / "job.yaml", job()
    limits = "{tools: ['a:b'], limits: {turns: 3}, concurrency: 1"
    for seconds, said in (
        ("", "Conversations have 2 turns on average; tools take no time, unless rollout."),
        (", expectedToolSeconds: 9", "and tools take 9.0 s for a turn: engines wait for them"),
    ):
        environment = f", environment: {limits}{seconds}}}}}"
        path.write_text(text.replace("maxResponseTokens: 8}", f"maxResponseTokens: 8{environment}"))
        code, out, _ = run(str(path))
        assert code == 0 and said in out
    # 16 conversations of one node, one at a time, with two turns each.
    estimate = json.loads(run(str(path), "-o", "json")[1])["estimate"]["conversations"]
    assert estimate["waitSeconds"] == pytest.approx(16 * 9, rel=1e-6)
    assert (estimate["turns"], estimate["toolSeconds"]) == (2, 9)


LONG_TAIL = """
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: tail}
spec:
  algorithm: {type: PPO, ppo: {klCoefficient: 0.05}}
  models: {actor: {source: {huggingFace: Qwen/Qwen2.5-7B}}, critic: {source: {sameAs: actor}}}
  data: {train: {builtin: SortDigits}}
  rewards: [{function: {entrypoint: "verifiers:exact"}}]
  schedule: {steps: 3, promptsPerStep: 64}
  rollout:
    {maxPromptTokens: 512, maxResponseTokens: 8192, expectedResponseTokens: 1000,
     expectedTruncated: 0}
  resources: {nodePools: [{name: a, device: GPU, gpu: H100, devicesPerNode: 8}]}
"""


def test_stages_that_overlap_are_shown_in_their_parts(tmp_path: Path) -> None:
    """The call that finishes responses has a row; in timelines fused calls have two bars."""
    path, page = tmp_path / "job.yaml", tmp_path / "plan.html"
    path.write_text(LONG_TAIL)
    code, out, _ = run(str(path), "--html", str(page), "--explain", "actor.finish")
    assert code == 0 and "without a stage fusion" in out
    rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    (finish,) = (row for row in rows if len(row) == 11 and row[2] == "actor.finish")
    assert finish[3] == "Finish" and finish[8] and finish[9] == "-> responses"
    picture = "".join(re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL))
    for text in ("actor.finish", "reference.log_probs (early)", "reference.log_probs (late)"):
        assert text in out and text in picture
    assert "actor.finish: devices" in out and "without it" not in out
    _, out, _ = run(str(path), "--set", "spec.rollout.stageFusion=Never")
    assert "actor.finish" not in out and "(late)" not in out


def test_pipelines_that_could_be_interleaved_are_told(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    training = "{engine: Megatron, parallelism: {tensor: 2, pipeline: 4}}"
    roles = LONG_TAIL.replace("7B}", f"7B}}, training: {training}")
    roles = roles.replace("actor}}", f"actor}}, training: {training}}}")
    path.write_text(roles + "  placement: {type: Colocated}\n")
    code, out, _ = run(str(path))
    assert code == 0
    assert "Not done: critic.train and actor.train with their pipelines interleaved" in out
    assert "The runtime has no such schedule." in out
    fusions = json.loads(run(str(path), "-o", "json")[1])["estimate"]["pipelineFusions"]
    assert [each["calls"] for each in fusions] == [["critic.train", "actor.train"]]
    assert fusions[0]["fusedSeconds"] < fusions[0]["serialSeconds"]


def test_two_plans_are_compared(tmp_path: Path) -> None:
    path, before = tmp_path / "job.yaml", tmp_path / "before.json"
    path.write_text(job())
    before.write_text(run(str(path), "-o", "json")[1])
    assert "The plans are the same." in run(str(path), "--diff", str(before))[1]
    _, out, _ = run(str(path), "--devices", "4", "--diff", str(before))
    assert "actor: devices" in out and "0 to 3 of " in out
    code, _, err = run(str(path), "--diff", str(path))
    assert code == 2 and "no plan of this version" in err
