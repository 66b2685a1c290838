"""A new user's mistakes end before anything starts: where, what, got, allowed, do; all at once."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlhf_api.errors import SeveralErrors
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.app import app
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.preflight import Checked, Place, checked
from rlhf_cli.run import run_command
from rlhf_cli.user_code import user_code
from rlhf_cli.validate import lines_of
from rlhf_flow.planning.make_plan import pools_of
from rlhf_runtime.data.errors import DataNotFound, InvalidRow
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.tiny_llama import write_tiny_llama
from rlhf_runtime.preflight.limits import QUICK, THOROUGH, Limits
from rlhf_runtime.rewards.errors import InvalidReward

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
from rlhf_flow.operations import Custom, GroupAdvantages

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


@dataclass(frozen=True)
class Mistake:
    """Something that a new user gets wrong."""

    says: str
    """A pattern of what is told."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Of the manifest's spec."""
    rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Of the data, by their numbers."""
    damage: Callable[[Path], object] | None = None
    """To the model's folder."""
    operation: str = ""
    """Of an algorithm of one's own."""


def function(entrypoint: str, **parameters: Any) -> dict[str, Any]:
    given = {"entrypoint": entrypoint, "parameters": parameters}
    return {"rewards": [{"name": "right", "function": given}]}


def configured(**changes: Any) -> Callable[[Path], object]:
    """Change what a model's config.json says."""

    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def swapped_tokens(folder: Path) -> None:
    """Another tokenizer than that of the folder beside it."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
    file.write_text(json.dumps(tokenizer))


WARM = {"schedule": {"warmStart": {"maxSteps": 1, "promptsPerStep": 4}}}
MISTAKES = {
    "no such file": Mistake(
        r"DataNotFound: data\.train\.path is not a file: got /no/rows\.jsonl \(nothing there\)",
        {"data": {"train": {"path": "/no/rows.jsonl"}}},
    ),
    "a folder of data": Mistake(
        r"DataNotFound: .*\(a folder\), allowed a \.parquet", {"data": {"train": {"path": "/tmp"}}}
    ),
    "no such column": Mistake(
        "MissingField: data.train.promptField .*: got question, allowed prompt, answer",
        {"data": {"train": {"promptField": "question"}}},
    ),
    "two columns that are not there": Mistake(
        "got question(.|\n)*data.train.answerField .*: got solution",
        {"data": {"train": {"promptField": "question", "answerField": "solution"}}},
    ),
    "a column of held-out rows": Mistake(
        "data.evaluation.promptField .*got question",
        {"data": {"evaluation": {"path": "DATA", "promptField": "question"}}},
    ),
    "a prompt over the limit": Mistake(
        r"PromptTooLong: data\.train \(.*rows\.jsonl\) has 2 prompts over the limit .*row 3 with "
        r"20 tokens, row 5 with 30 tokens, the longest row 5 with 30; allowed "
        r"rollout\.maxPromptTokens = 16; raise it \(30 takes all\)",
        rows={3: {"prompt": "1" * 20}, 5: {"prompt": "1" * 30}},
    ),
    "rows of several faults": Mistake(
        r"InvalidRow: .*row 1: prompt is null or missing, row 2: prompt is an empty(.|\n)*"
        "PromptTooLong: .*row 7 with 20 tokens(.|\n)*2 problems in 1 file",
        rows={1: {"prompt": None}, 2: {"prompt": " "}, 7: {"prompt": "1" * 20}},
    ),
    "a number that is none": Mistake(
        "InvalidRow: .*row 4: weight .*null", rows={4: {"weight": float("nan")}}
    ),
    "fewer rows than a step takes": Mistake(
        "DatasetTooSmall: .*got 32 usable rows, allowed at least schedule.promptsPerStep = 64",
        {"schedule": {"promptsPerStep": 64}},
    ),
    "a warm start without answers": Mistake(
        "MissingAnswer: .*the first is row 9", WARM, rows={9: {"answer": None}}
    ),
    "an answer that no response holds": Mistake(
        "InvalidRow: .*row 2: an answer of 41 tokens with the end token, over 16",
        WARM,
        rows={2: {"answer": "1" * 40}},
    ),
    "a verifier by its file": Mistake(
        r"InvalidReward: the reward right \(addv\.py:score\) .*did you mean addv:score\?",
        function("addv.py:score"),
    ),
    "a verifier that is not there": Mistake(
        "InvalidReward: .*got scor, allowed exact, score", function("addv:scor")
    ),
    "a verifier's module that is not there": Mistake(
        "InvalidReward: .*no such module: got nowhere", function("nowhere:score")
    ),
    "a verifier that does not import": Mistake(
        "InvalidReward: .*raised(.|\n)*No module named 'no_such_package'", function("needy:score")
    ),
    "a parameter that a verifier does not have": Mistake(
        r"InvalidReward: .*got an unexpected keyword argument 'scale'; got score\(samples\)",
        function("addv:score", scale=2.0),
    ),
    "two verifiers, both wrong": Mistake(
        r"\(addv:one\)(.|\n)*\(addv:two\)(.|\n)*2 problems in 1 file",
        {
            "rewards": [
                {"name": name, "function": {"entrypoint": f"addv:{name}"}}
                for name in ("one", "two")
            ]
        },
    ),
    "a goal that no verifier measures": Mistake(
        r"InvalidReward: no verifier measures exact_match, which schedule\.warmStart\.stopAt",
        {
            "schedule": {
                "warmStart": {"maxSteps": 1, "promptsPerStep": 4, "stopAtExactMatch": 0.5},
            },
            "data": {"evaluation": {"path": "DATA"}},
        },
    ),
    "a folder of code that is not there": Mistake(
        r"job\.yaml:\d+:\d+: spec\.code\.local: not a folder: got /.*/nowhere",
        {"code": {"local": "./nowhere"}},
    ),
    "no such model": Mistake(
        r"^\S+job\.yaml: ModelNotFound: .*got /no/model \(nothing there\).*\n1 problem in 1 file$",
        {"models": {"actor": {"source": {"path": "/no/model"}}}},
    ),
    "a model without weights": Mistake(
        "ModelIncomplete: .*missing weights",
        damage=lambda folder: (folder / "model.safetensors").unlink(),
    ),
    "weights that are cut off": Mistake("ModelIncomplete: .*is cut off", damage=cut_off),
    "a model without a config": Mistake(
        "ModelIncomplete: .*missing config.json",
        damage=lambda folder: (folder / "config.json").unlink(),
    ),
    "a model without a tokenizer": Mistake(
        r"TokenizerUnusable: no tokenizer\.json in the model's folder",
        damage=lambda folder: (folder / "tokenizer.json").unlink(),
    ),
    "an index that names no files": Mistake(
        r"ModelIncomplete: an index without weight_map: got .*index\.json",
        damage=lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
    ),
    "a config that is no JSON": Mistake(
        r"ModelIncomplete: not valid JSON: got .*config\.json",
        damage=lambda folder: (folder / "config.json").write_text("{"),
    ),
    "a tokenizer without tokens": Mistake(
        r"ModelIncomplete: tokenizer\.json has no vocabulary",
        damage=lambda folder: (folder / "tokenizer.json").write_text("{}"),
    ),
    "a tokenizer of another model": Mistake(
        "VocabularyMismatch: .*actor has more tokens than its model",
        damage=configured(vocab_size=9),
    ),
    "roles that disagree on tokens": Mistake(
        "VocabularyMismatch: actor and reference",
        {
            "algorithm": {"grpo": {"klCoefficient": 0.1}},
            "models": {"reference": {"source": {"builtin": "TinyLlama"}}},
        },
        damage=swapped_tokens,
    ),
    "heads that no engine computes": Mistake(
        "NotOffered: actor generates with a model .*got heads of 16, allowed 32, 48, 64",
        damage=configured(head_dim=16),
    ),
    "ranks that do not share heads": Mistake(
        r"training\.parallelism\.tensor: .*got tensor 3, and 4 attention",
        {"models": {"actor": {"training": {"engine": "Megatron", "parallelism": {"tensor": 3}}}}},
    ),
    "a model of too few positions": Mistake(
        r"ContextTooShort: .*maxResponseTokens = 32, allowed max_position_embeddings = 31",
        damage=configured(max_position_embeddings=31),
    ),
    "a GPU of another name": Mistake(
        r"PlanUnknown: .*got gpu H10O .*did you mean H100\?",
        {"resources": {"nodePools": [{"name": "gpus", "gpu": "H10O"}]}},
    ),
    "a custom function that is not there": Mistake(
        r"InvalidAlgorithm: .*mine\.py:12: no such name for the custom operation: got mine:shift",
        operation='Custom("mine:shift", reads=["reward_scores"], writes=["x"])',
    ),
    "a custom function's argument": Mistake(
        r"InvalidAlgorithm: .*mine\.py:12: .*mine:shifted does not take its arguments: .*'by'",
        operation='Custom("mine:shifted", reads=["reward_scores"], writes=["x"])',
    ),
    "a join over what was generated": Mistake(
        r"InvalidAlgorithm: .*mine\.py:12: a join overwrites what was generated: got response_text",
        operation=(
            'Custom("mine:shifted", reads=["response_text"], writes=["response_text"], '
            'parameters={"by": 1})'
        ),
    ),
    "an algorithm's module that is not there": Mistake(
        "InvalidAlgorithm: no such module for the algorithm: got their:Mine",
        {"algorithm": {"type": "Custom", "custom": {"entrypoint": "their:Mine"}}},
    ),
    "everything at once": Mistake(
        r"spec\.code\.local: not a folder(.|\n)*ModelIncomplete: (.|\n)*DataNotFound: (.|\n)*"
        "3 problems in 1 file",
        {"code": {"local": "./nowhere"}, "data": {"train": {"path": "/no/rows.jsonl"}}},
        damage=cut_off,
    ),
}


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


def merge(into: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_anything_starts(place: Path, model: Path, name: str) -> None:
    file = write(place, model, MISTAKES[name])
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
    assert len(others) == 2 and "got 3 of 8, which makes 3 updates of 3 or 2" in others[1]


def test_a_run_tells_the_same_and_leaves_nothing(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # whoever imports it fails
    file = write(place, model, MISTAKES["everything at once"])
    with pytest.raises(SeveralErrors) as caught:
        run_command(file, place / "out", 1, None, None, (), fresh=False)
    kinds = [type(error) for error in caught.value.errors]
    assert kinds[1:] == [ModelIncomplete, DataNotFound]
    assert not (place / "out").exists()


@pytest.fixture
def check(place: Path) -> Callable[..., Checked]:
    """A job's checks, with one call instead of a file of its own."""

    def of_file(file: Path, limits: Limits = THOROUGH, one_machine: bool = True) -> Checked:
        job: RLHFJob
        (job,) = local_jobs(file)
        where = Place(
            pools=lambda: pools_of(job),
            code=user_code(job),
            lines=lambda: lines_of(file, job),
            one_machine=one_machine,
        )
        with checked(job, where, limits) as found:
            return found

    return of_file


def test_what_is_elsewhere_is_left_to_workers(
    place: Path, model: Path, check: Callable[..., Checked], monkeypatch: pytest.MonkeyPatch
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
    place: Path, model: Path, check: Callable[..., Checked]
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
    place: Path, model: Path, check: Callable[..., Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.preflight.limits.CHUNK_ROWS", 1)
    (place / "addv.py").write_text("import time\ntime.sleep(60)\n")
    found = check(write(place, model, Mistake("")), Limits(0.0, 0.2))
    assert found.unchecked == [
        "data.train: the rows after the first 1",
        "the reward right: its module loads slowly",
    ]


def test_rows_that_are_not_reached_may_be_of_use(
    place: Path, model: Path, check: Callable[..., Checked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.preflight.limits.CHUNK_ROWS", 1)
    change = {"data": {"onInvalidRow": "Skip"}}
    found = check(
        write(place, model, Mistake("", change, {0: {"prompt": None}})), Limits(0.0, 10.0)
    )
    assert found.unchecked == ["data.train: the rows after the first 1"]


def test_faults_in_the_rows_that_are_reached_are_told(
    place: Path, model: Path, check: Callable[..., Checked]
) -> None:
    file = write(place, model, Mistake("", rows={0: {"prompt": None}}))
    with pytest.raises(InvalidRow, match="row 0: prompt is null"):
        check(file, Limits(0.0, 10.0))


def test_the_head_of_a_cluster_may_lack_what_verifiers_need(
    place: Path, model: Path, check: Callable[..., Checked]
) -> None:
    """Memory, and variables of the pools that score."""
    (place / "addv.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    file = write(place, model, Mistake(""))
    found = check(file, one_machine=False)
    assert found.unchecked == ["the reward right: its import ends a process"]
    with pytest.raises(InvalidReward, match="SIGKILL"):
        check(file)
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
def test_examples_pass(check: Callable[..., Checked], number: str) -> None:
    (file,) = (Path(__file__).parents[2] / "examples").glob(f"{number}-*.yaml")
    found = check(file, QUICK)
    assert found.traced is not None and not found.unchecked
