"""A new user's mistakes end before anything starts: where, what, got, allowed, do; all at once."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlhf_api.errors import SeveralErrors
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.app import app
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.local_run import run_job
from rlhf_cli.manifests import annotate_lines
from rlhf_cli.preflight import CheckedJob, RunTarget, preflight
from rlhf_cli.user_code import user_code
from rlhf_planner.plan import pools_of
from rlhf_runtime.data.errors import DataNotFound, InvalidRow
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.tiny_llama import write_tiny_llama
from rlhf_runtime.preflight import rewards as preflight_rewards
from rlhf_runtime.preflight.findings import THOROUGH, Limits
from rlhf_runtime.rewards.errors import InvalidReward

from ..merging import merge
from ..unprivileged import permissions_hold
from .mistakes import MISTAKES, Mistake, function

pytestmark = pytest.mark.slow

MANIFEST = """\
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: add}
spec:
  algorithm: {type: GRPO}
  models: {actor: {source: {path: MODEL}}}
  data: {train: {path: DATA}}
  rewards: [{name: right, function: {entrypoint: "addv:score"}}]
  rollout: {samplesPerPrompt: 4, maxPromptTokens: 16, maxResponseTokens: 16}
  schedule: {steps: 2, promptsPerStep: 8}
  code: {local: .}
"""
VERIFIERS = """
import rlhf_runtime.rewards as rewards

def score(samples):
    return [float(each.response == each.record["answer"]) for each in samples]

@rewards.measures("exact_match")
def exact(samples, *, scale=1.0):
    return score(samples)
"""
STEP = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import Custom, GroupAdvantages

class Mine(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, OPERATION)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))

def shifted(columns, *, by):
    return {}
"""
ROWS = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(32)]
runner = CliRunner()
EXACT_MATCH = "rlhf_runtime.rewards.exact_match:score"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_llama(folder, seed=0)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with code of one's own, in which commands are given."""
    (tmp_path / "addv.py").write_text(VERIFIERS)
    (tmp_path / "needy.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def write(place: Path, model: Path, mistake: Mistake) -> Path:
    """The manifest of a job with a mistake."""
    rows = [{**row, **mistake.rows.get(number, {})} for number, row in enumerate(ROWS)]
    data = place / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if mistake.data_damage is not None:
        mistake.data_damage(data)
    if mistake.damage is not None:
        model = Path(shutil.copytree(model, place / "model"))
        mistake.damage(model)
    manifest = yaml.safe_load(MANIFEST)
    change: dict[str, Any] = json.loads(json.dumps(mistake.change))
    if mistake.operation:
        (place / "mine.py").write_text(STEP.replace("OPERATION", mistake.operation))
        change["algorithm"] = {"type": "Custom", "custom": {"entrypoint": "mine:Mine"}}
    merge(manifest["spec"], change)
    text = yaml.safe_dump(manifest).replace("MODEL", str(model)).replace("DATA", str(data))
    file = place / "job.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_anything_starts(place: Path, model: Path, name: str) -> None:
    file = write(place, model, MISTAKES[name])
    with permissions_hold():
        result = runner.invoke(app, ["validate", "--deep", str(file)])
    assert result.exit_code in (2, 3), result.output
    assert re.search(MISTAKES[name].says, result.output), result.output
    assert "fault of rlhf" not in result.output


def test_a_job_without_mistakes_is_described(place: Path, model: Path) -> None:
    change = {"schedule": {"miniBatchPrompts": 3}}
    file = write(place, model, Mistake("", change, {7: {"prompt": "1+1+1+1+1="}}))
    result = runner.invoke(app, ["validate", "--deep", str(file)])
    first, *others = result.output.splitlines()
    assert (result.exit_code, first) == (0, f"{file}: add is valid and can start")
    assert others[0] == (
        f"  data.train: 32 rows of {place}/rows.jsonl; the longest prompt is row 7 with 10 tokens "
        "(rollout.maxPromptTokens = 16)"
    )
    assert others[1].startswith("  data.train: row 0, prompt, ")
    assert len(others) == 3 and "a step makes 3 updates of 3 or 2 prompts" in others[2]


def test_what_is_trained_on_of_a_conversation_is_shown(place: Path, model: Path) -> None:
    chat = Path(shutil.copytree(model, place / "chat"))
    (chat / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role[0] + ':' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    turns = (("user", "1+1="), ("assistant", "2"), ("user", "2+2="), ("assistant", "4"))
    messages = [{"role": role, "content": content} for role, content in turns]
    rows = dict.fromkeys(range(len(ROWS)), {"messages": messages})
    fields = {"promptField": "messages", "answerField": "messages", "trainOn": "AllAnswers"}
    change = {
        "algorithm": {"type": "SFT"},
        "models": {"actor": {"source": {"path": str(chat)}}},
        "data": {"train": fields},
        "rewards": [],
    }
    result = runner.invoke(
        app, ["validate", "--deep", str(write(place, model, Mistake("", change, rows)))]
    )
    assert result.exit_code == 0, result.output
    assert "data.train: row 0, prompt, 9 tokens: 'u:1+1=<eos>a:'\n" in result.output
    assert (
        "data.train: row 0, trained answers, 4 of 13 tokens: "
        "'2<eos>' [context: 'u:2+2=<eos>a:'] '4<eos>'\n" in result.output
    )


def test_prompts_that_are_trained_on_and_evaluated_are_counted(place: Path, model: Path) -> None:
    change = {"data": {"evaluation": {"path": "DATA"}}}
    result = runner.invoke(
        app, ["validate", "--deep", str(write(place, model, Mistake("", change)))]
    )
    assert result.exit_code == 0, result.output
    warning = "  warning: 32 of 32 prompts of data.evaluation are also in data.train: "
    assert warning in result.output


def test_rows_that_a_verifier_cannot_score_are_counted(place: Path, model: Path) -> None:
    change = {"rewards": [{"function": {"entrypoint": EXACT_MATCH}}]}
    some = Mistake("", change, {3: {"answer": None}, 5: {"answer": {"is": "5"}}})
    result = runner.invoke(app, ["validate", "--deep", str(write(place, model, some))])
    assert result.exit_code == 0, result.output
    counted = "cannot score 2 of 32 rows of data.train, for their answer"
    told = f"  warning: {EXACT_MATCH} {counted}: got row 3: an answer is of type NoneType"
    assert told in result.output
    every = Mistake("", change, {row: {"answer": {"is": "5"}} for row in range(32)})
    result = runner.invoke(app, ["validate", "--deep", str(write(place, model, every))])
    assert result.exit_code == 3
    assert "cannot use answer in any row of data.train: got row 0: an answer" in result.output


PLACED = {
    "no such column": "      promptField: question",
    "fewer rows than a step takes": "    promptsPerStep: 64",
    "two verifiers, both wrong": "      entrypoint: addv:one",
    "heads that no engine computes": "      source:",
    "an address that nobody knows": "      path: /no.jsonl",
}


@pytest.mark.parametrize("name", PLACED)
def test_a_mistake_is_told_with_its_line(place: Path, model: Path, name: str) -> None:
    file = write(place, model, MISTAKES[name])
    told = runner.invoke(app, ["validate", "--deep", str(file)]).output.splitlines()[0]
    assert (found := re.match(rf"{re.escape(str(file))}:(\d+):(\d+): ", told)), told
    line = file.read_text().splitlines()[int(found[1]) - 1]
    assert line.startswith(PLACED[name])


@pytest.mark.parametrize(
    "override",
    [
        "spec.rewards[0].function.entrypoint=addv:scor",
        "spec.models.actor.source.path=/no/model",
        "spec.checkpoint.storage.uri=file://kept",
        "spec.schedule={steps: 2, promptsPerStep: 64}",
    ],
)
def test_what_an_override_gives_is_told_as_its_own(place: Path, model: Path, override: str) -> None:
    file = write(place, model, Mistake(""))
    result = runner.invoke(app, ["run", str(file), "--set", override, "-o", str(place / "out")])
    assert re.match(rf"\w+: --set {re.escape(override)}: ", result.output), result.output
    assert not (place / "out").exists()


@pytest.mark.parametrize("override", ["spec.code.local=nowhere", "spec.data.train.path=no.jsonl"])
def test_of_standard_input_what_gave_a_mistake_is_told(
    place: Path, model: Path, override: str
) -> None:
    change = {"checkpoint": {"storage": {"uri": "s4://a/b"}}}
    text = write(place, model, Mistake("", change)).read_text()
    result = runner.invoke(app, ["validate", "--deep", "-", "--set", override], input=text)
    told = sorted(result.output.splitlines()[:-1])
    assert told[0].startswith(f"--set {override}: ") and told[1].startswith("<stdin>: Storage")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("spec.algorithm.custom.entrypoint=mine:Mnie", "did you mean Mine?"),
        ("spec.algorithm.custom.parameters={clip: 1}", "does not take the parameters: got clip"),
    ],
)
def test_an_algorithms_mistakes_are_told_where_the_manifest_makes_them(
    place: Path, model: Path, override: str, says: str
) -> None:
    operation = 'Custom("mine:shifted", ["reward_scores"], ["x"], parameters={"by": 1})'
    file = write(place, model, Mistake("", operation=operation))
    result = runner.invoke(app, ["plan", str(file), "--set", override])
    assert result.output.startswith(f"InvalidAlgorithm: --set {override}: "), result.output
    assert says in result.output


def test_rows_that_are_left_out_are_counted(place: Path, model: Path) -> None:
    change = {"data": {"onInvalidRow": "Skip", "onLongPrompt": "Skip"}}
    rows: dict[int, dict[str, Any]] = {1: {"prompt": None}, 2: {"prompt": "1" * 20}}
    file = write(place, model, Mistake("", change, rows | {3: {"prompt": "1" * 30}}))
    told = runner.invoke(app, ["validate", "--deep", str(file)]).output
    assert (
        f"data.train: 29 rows of {place}/rows.jsonl, without 1 that cannot be used "
        "(data.onInvalidRow: Skip) and 2 whose prompt is too long (data.onLongPrompt: Skip); the"
    ) in told


def test_a_run_tells_the_same_and_leaves_nothing(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # whoever imports it fails
    file = write(place, model, MISTAKES["everything at once"])
    with pytest.raises(SeveralErrors) as caught:
        run_job(file, place / "out", 1, None, None, (), fresh=False)
    kinds = [type(error) for error in caught.value.errors]
    assert kinds[1:] == [ModelIncomplete, DataNotFound]
    assert not (place / "out").exists()


@pytest.fixture
def check(place: Path) -> Callable[..., CheckedJob]:
    """A job's checks, with one call instead of a file of its own."""

    def of_file(file: Path, limits: Limits = THOROUGH, one_machine: bool = True) -> CheckedJob:
        job: RLHFJob
        (job,) = local_jobs(file)
        target = RunTarget(
            pools=lambda: pools_of(job),
            code=user_code(job),
            lines=lambda: annotate_lines(file, job),
            one_machine=one_machine,
        )
        with preflight(job, target, limits) as found:
            return found

    return of_file


def test_what_is_elsewhere_is_left_to_workers(
    place: Path, model: Path, check: Callable[..., CheckedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(place / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub = {
        "models": {"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-0.5B", "path": None}}},
        "data": {"evaluation": {"huggingFace": "openai/gsm8k", "configuration": "main"}},
    }
    found = check(write(place, model, Mistake("", hub)))
    assert found.unchecked == [
        "the model of actor: workers download Qwen/Qwen2.5-0.5B when they start",
        "rows of the data: there is no tokenizer to read them with",
    ]
    own = {"data": {"evaluation": {"huggingFace": "openai/gsm8k", "configuration": "main"}}}
    assert check(write(place, model, Mistake("", own))).unchecked == [
        "data.evaluation: workers load openai/gsm8k when they start"
    ]


def test_a_model_that_only_workers_see_is_left_to_them(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    shape = {"numLayers": 2, "hiddenSize": 64, "intermediateSize": 64, "numAttentionHeads": 2}
    shape |= {"numKeyValueHeads": 2, "headDim": 32, "vocabSize": 64}
    apart = {"models": {"actor": {"source": {"path": "/claim/model"}, "shape": shape}}}
    file = write(place, model, Mistake("", apart))
    found = check(file, one_machine=False)
    assert found.unchecked[0] == "the model of actor: /claim/model is not on this machine"
    with pytest.raises(Exception, match="got /claim/model"):
        check(file)


def test_time_ends_what_a_run_waits_for(
    place: Path, model: Path, check: Callable[..., CheckedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.data.rows.BATCH_CHARACTERS", 1)
    (place / "addv.py").write_text("import time\ntime.sleep(60)\n")
    found = check(write(place, model, Mistake("")), Limits(0.0, 0.2))
    assert found.unchecked == [
        "data.train: the rows after the first 1",
        "the reward right: its module loads slowly",
    ]


def test_rows_that_are_not_reached_may_be_of_use(
    place: Path, model: Path, check: Callable[..., CheckedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.data.rows.BATCH_CHARACTERS", 1)
    change = {"data": {"onInvalidRow": "Skip"}}
    found = check(
        write(place, model, Mistake("", change, {0: {"prompt": None}})), Limits(0.0, 10.0)
    )
    assert found.unchecked == ["data.train: the rows after the first 1"]


def test_faults_in_the_rows_that_are_reached_are_told(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    file = write(place, model, Mistake("", rows={0: {"prompt": None}}))
    with pytest.raises(InvalidRow, match="row 0: prompt is null"):
        check(file, Limits(0.0, 10.0))


@pytest.mark.parametrize(
    ("module", "why", "here"),
    [
        ("import os; os.kill(os.getpid(), 9)", "its import ends a process", "SIGKILL"),
        (
            "raise RuntimeError('No CUDA GPUs are available')",
            "its import raises here: RuntimeError: No CUDA GPUs are available",
            "which raised",
        ),
    ],
)
def test_the_head_of_a_cluster_may_lack_what_verifiers_import(
    place: Path, model: Path, check: Callable[..., CheckedJob], module: str, why: str, here: str
) -> None:
    """Memory, or the devices of the nodes that score."""
    (place / "addv.py").write_text(f"{module}\n")
    file = write(place, model, Mistake(""))
    assert check(file, one_machine=False).unchecked == [f"the reward right: {why}"]
    with pytest.raises(InvalidReward, match=here):
        check(file)


def test_an_import_takes_no_more_than_its_part_of_a_heads_memory(
    place: Path,
    model: Path,
    check: Callable[..., CheckedJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the import that fails, not the pod; where rewards are scored here it may have all."""
    monkeypatch.setattr(preflight_rewards, "machine_memory_bytes", lambda: 1 << 30)
    (place / "addv.py").write_text(f"HELD = bytes({1 << 28})\n{VERIFIERS}")
    file = write(place, model, Mistake(""))
    assert check(file, one_machine=False).unchecked == [
        "the reward right: its import raises here: MemoryError"
    ]
    assert not check(file).unchecked


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (function("nowhere:score"), "no such module: got nowhere"),
        (function("addv:scor"), "got scor, allowed exact, score"),
        (function("addv:score", scale=2.0), "got an unexpected keyword argument 'scale'"),
    ],
)
def test_what_no_node_would_find_is_told_on_the_head(
    place: Path, model: Path, check: Callable[..., CheckedJob], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidReward, match=says):
        check(write(place, model, Mistake("", change)), one_machine=False)


def test_verifiers_of_pools_with_variables_are_left_to_them(
    place: Path, model: Path, check: Callable[..., CheckedJob]
) -> None:
    pool = {"name": "cpus", "device": "CPU", "devicesPerNode": 1, "memoryPerDevice": "8Gi"}
    env = [{"name": "ANSWERS", "value": "/claim/answers"}]
    own = {"resources": {"nodePools": [{**pool, "env": env}]}}
    (place / "addv.py").write_text("import os\nos.environ['ANSWERS']\n")
    found = check(write(place, model, Mistake("", own)), one_machine=False)
    assert found.unchecked == ["verifiers: pods of node pools have variables of their own"]


def test_code_of_a_cluster_is_not_looked_for_here(place: Path, model: Path) -> None:
    away = {"code": {"local": None, "configMap": {"name": "code"}}}
    file = write(place, model, Mistake("", away | function("away:score")))
    result = runner.invoke(app, ["validate", "--deep", str(file)])
    assert result.exit_code == 0, result.output
    assert (
        "not checked: verifiers and algorithms: their code is not on this machine" in result.output
    )


@pytest.mark.parametrize("number", ["01", "09", "10", "13"])
def test_examples_pass(check: Callable[..., CheckedJob], number: str) -> None:
    """As a run checks them, on a machine that is as busy as it may be."""
    (file,) = (Path(__file__).parents[2] / "examples").glob(f"{number}-*.yaml")
    found = check(file, Limits(rows_seconds=600.0, verifier_seconds=600.0))
    assert found.graphs_and_plan is not None and not found.unchecked
