"""`rlhf fill`: what a cluster needs to plan is in the file, and nothing else of it has changed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_api.exits import ExitCode
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.models import ModelFamily
from rlhf_cli.app import app
from rlhf_flow.document.manifest_graph import matches_settings

from ..unprivileged import permissions_hold

CODE = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import GroupAdvantages

class Mine(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))
"""
CONFIG = {
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
JOB = """\
# The reward is exact match.
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: %s}   # a name
spec:
  algorithm:
    type: Custom
    custom: {entrypoint: "filled_in:Mine"}
  models:
    actor:
      source: {path: model}   # beside this file

    # the reward model is in rewards
  data: {train: {builtin: SortDigits}}
  rewards:
  - {function: {entrypoint: "verifiers:exact"}}
  schedule: {steps: 3, promptsPerStep: 8}
  rollout: {samplesPerPrompt: 2, maxPromptTokens: 8, maxResponseTokens: 8}
  resources: {nodePools: [{name: a, gpu: V100-32G}]}
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {on: yes}   # 1.1\n"
SHAPE = "sort: spec.models.actor.shape (Qwen2, 2 layers of 128)"
GRAPH = "sort: spec.algorithm.graph (4 calls of 2 roles)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with code, a model and a manifest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "filled_in.py").write_text(CODE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "job.yaml").write_text(JOB % "sort")
    return tmp_path


def run(*arguments: str, given: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*arguments], input=given)
    return result.exit_code, result.stdout, result.stderr


def test_shape_and_graph_are_written_between_what_was_there(folder: Path) -> None:
    code, out, _ = run("fill", "job.yaml")
    assert (code, out) == (0, f"job.yaml: {SHAPE}\njob.yaml: {GRAPH}\n")
    text = (folder / "job.yaml").read_text()
    lines = iter(text.splitlines())
    assert all(line in lines for line in (JOB % "sort").splitlines()), "in this order"
    (job,) = load_file("job.yaml")
    shape = job.spec.models["actor"].shape
    assert shape is not None and shape.family is ModelFamily.QWEN2 and shape.head_dim == 32
    assert matches_settings(job)


def test_a_second_time_changes_nothing(folder: Path) -> None:
    run("fill", "job.yaml")
    before = (folder / "job.yaml").read_bytes()
    assert run("fill", "job.yaml")[1] == "job.yaml: nothing to fill in\n"
    assert (folder / "job.yaml").read_bytes() == before
    assert run("fill", "--check", "job.yaml")[:2] == (0, "job.yaml: nothing to fill in\n")


def test_check_writes_nothing_and_says_what_is_missing(folder: Path) -> None:
    code, out, _ = run("fill", "--check", "job.yaml")
    assert code == ExitCode.MANIFEST
    assert f"{SHAPE}: missing or out of date" in out and "run `rlhf fill job.yaml`" in out
    assert (folder / "job.yaml").read_text() == JOB % "sort"


def test_code_and_models_that_change_are_noticed_by_everybody(folder: Path) -> None:
    run("fill", "job.yaml")
    assert run("plan", "job.yaml", "--devices", "1")[0] == 0
    code = CODE.replace("generate(prompts)", "generate(prompts, samples=4)")
    (folder / "filled_in.py").write_text(code)
    for command in ("plan", "run"):
        result, _, told = run(command, "job.yaml", "--devices", "1")
        assert result in (ExitCode.MANIFEST, ExitCode.USER), "a run finds more that is wrong"
        assert "ManifestOutdated: job.yaml:9:5: the manifest's graph is not that of" in told
        assert "got calls[0].rows.expected 2.0, allowed 4.0" in told
    assert "ManifestOutdated" in run("validate", "--deep", "job.yaml")[1]
    assert run("fill", "--check", "job.yaml")[0] == ExitCode.MANIFEST
    assert run("fill", "job.yaml")[1] == f"job.yaml: {GRAPH}\n"
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 4}))
    result, _, told = run("plan", "job.yaml", "--devices", "1")
    assert result == ExitCode.MANIFEST
    assert "ManifestOutdated" in told and "got numLayers 2, allowed 4" in told
    assert "4 layers of 128" in run("fill", "job.yaml")[1]
    assert run("plan", "job.yaml", "--devices", "1")[0] == 0
    assert (folder / "job.yaml").read_text().count("shape:") == 1


def test_without_the_code_a_plan_is_made_by_the_manifest_and_says_so(folder: Path) -> None:
    run("fill", "job.yaml")
    expected = run("plan", "job.yaml", "--devices", "1", "-o", "json")[1]
    (folder / "filled_in.py").unlink()
    code, out, told = run("plan", "job.yaml", "--devices", "1", "-o", "json")
    assert code == 0 and out == expected
    assert "the plan is made from the graph in the manifest" in told


def test_other_documents_of_the_file_stay_as_they_are(folder: Path) -> None:
    preset = (JOB % "preset").replace("type: Custom", "type: GRPO")
    preset = preset.replace('    custom: {entrypoint: "filled_in:Mine"}\n', "")
    text = f"{CONFIG_MAP}---\n{JOB % 'sort'}---\n# empty\n---\n{preset}"
    (folder / "all.yaml").write_text(text)
    code, out, _ = run("fill", "all.yaml", "-o", "filled.yaml")
    assert code == 0 and out.count("\n") == 3
    assert "preset: spec.models.actor.shape" in out and "preset: spec.algorithm" not in out
    assert (folder / "all.yaml").read_text() == text
    filled = (folder / "filled.yaml").read_text()
    assert filled.startswith(f"{CONFIG_MAP}---\n") and "\n---\n# empty\n---\n" in filled


def test_standard_input_goes_to_standard_output(folder: Path) -> None:
    code, out, told = run("fill", "-", given=JOB % "sort")
    run("fill", "job.yaml")
    assert code == 0 and out == (folder / "job.yaml").read_text()
    assert told == f"<stdin>: {SHAPE}\n<stdin>: {GRAPH}\n"
    assert run("fill", "-", given=CONFIG_MAP)[0] == ExitCode.MANIFEST


def test_line_ends_and_a_byte_order_mark_are_kept(folder: Path) -> None:
    text = (JOB % "sort").replace("\n", "\r\n")
    (folder / "job.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert run("fill", "job.yaml")[0] == 0
    content = (folder / "job.yaml").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf#") and content.count(b"\n") == content.count(b"\r\n")


def test_a_template_is_refused_with_the_command_that_renders_it(folder: Path) -> None:
    (folder / "job.yaml").write_text((JOB % "sort").replace("steps: 3", "steps: {{ .Values.n }}"))
    code, _, told = run("fill", "job.yaml")
    assert code == ExitCode.MANIFEST
    assert (
        "a template, which is no manifest yet" in told and "helm template . | rlhf fill -" in told
    )


def test_a_file_that_cannot_be_written_stays_and_another_may_be_named(folder: Path) -> None:
    (folder / "job.yaml").chmod(0o444)
    with permissions_hold():
        code, _, told = run("fill", "job.yaml")
    assert code == ExitCode.MANIFEST and "job.yaml: cannot be written: permission denied" in told
    assert (folder / "job.yaml").read_text() == JOB % "sort"
    assert run("fill", "job.yaml", "-o", "-")[1].count("graph:") == 1


def test_a_link_and_permissions_are_kept(folder: Path) -> None:
    (folder / "job.yaml").rename(folder / "real.yaml")
    (folder / "real.yaml").chmod(0o640)
    (folder / "job.yaml").symlink_to("real.yaml")
    assert run("fill", "job.yaml")[0] == 0
    assert (folder / "job.yaml").is_symlink()
    assert (
        os.stat("real.yaml").st_mode & 0o777 == 0o640 and "graph:" in Path("real.yaml").read_text()
    )


def test_a_model_that_nobody_knows_here_is_named_and_nothing_is_written(folder: Path) -> None:
    text = (JOB % "sort").replace("path: model", "huggingFace: someone/their-model")
    (folder / "job.yaml").write_text(text)
    code, _, told = run("fill", "job.yaml")
    assert code == ExitCode.MANIFEST
    assert "the dimensions of someone/their-model are not known" in told
    assert (folder / "job.yaml").read_text() == text
    snapshot = folder / "hub" / "models--someone--their-model" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    assert SHAPE in run("fill", "job.yaml")[1]


def test_a_shape_by_hand_of_a_model_that_is_elsewhere_stays(folder: Path) -> None:
    run("fill", "job.yaml")
    (folder / "model" / "config.json").unlink()
    assert run("fill", "job.yaml")[1] == "job.yaml: nothing to fill in\n"


def test_a_graph_that_is_none_is_written_anew(folder: Path) -> None:
    broken = "type: Custom\n    graph: {version: 7}"
    (folder / "job.yaml").write_text((JOB % "sort").replace("type: Custom", broken))
    assert run("validate", "job.yaml")[0] == ExitCode.MANIFEST
    assert run("fill", "job.yaml")[0] == 0
    assert run("validate", "job.yaml")[0] == 0


def test_a_step_that_breaks_a_rule_is_told_with_its_line(folder: Path) -> None:
    (folder / "filled_in.py").write_text(CODE.replace("flow.reward.score", "flow.reward.guess"))
    code, _, told = run("fill", "job.yaml")
    assert code == ExitCode.USER and "filled_in.py:11" in told
    assert (folder / "job.yaml").read_text() == JOB % "sort"
