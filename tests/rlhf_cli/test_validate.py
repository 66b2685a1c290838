"""`rlhf validate`: what it prints, how it exits, what it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_cli.app import app
from rlhf_cli.manifests import annotate_lines, read_jobs
from rlhf_runtime.data.errors import DataNotFound

GOOD = """\
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: sort}
spec:
  algorithm: {type: GRPO}
  models: {actor: {source: {builtin: TinyLlama}}}
  data: {train: {builtin: SortDigits}}
  rewards: [{function: {entrypoint: "rlhf_runtime.rewards.exact_match:score"}}]
  schedule: {steps: 150, promptsPerStep: 64}
  rollout: {samplesPerPrompt: 8}
"""
BAD = GOOD.replace("steps: 150", "steps: 0").replace("samplesPerPrompt", "samples_per_prompt")
runner = CliRunner()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return path


def test_a_good_file_is_named_with_its_jobs(good: Path) -> None:
    result = runner.invoke(app, ["validate", str(good)])
    assert (result.exit_code, result.output) == (0, f"{good}: sort is valid\n")


def test_all_problems_of_all_files_are_printed_and_counted(good: Path, bad: Path) -> None:
    result = runner.invoke(app, ["validate", str(bad), str(good), str(bad)])
    lines = result.output.splitlines()
    assert result.exit_code == 2
    assert lines[0].startswith(f"{bad}:9:21: spec.schedule.steps: too small: got 0, allowed ")
    assert lines[1].startswith(f"{bad}:10:13: spec.rollout.samples_per_prompt: unknown field")
    assert lines[2] == f"{good}: sort is valid"
    assert lines[-1] == "4 problems in 2 files"


def test_overrides_are_checked_with_every_file(good: Path) -> None:
    result = runner.invoke(app, ["validate", str(good), "--set", "spec.schedule.steps=0"])
    assert result.exit_code == 2
    assert result.output.startswith("--set spec.schedule.steps=0: spec.schedule.steps: too small")
    again = runner.invoke(app, ["validate", str(good), "--set", "spec.schedule.steps=1"])
    assert (again.exit_code, again.output) == (0, f"{good}: sort is valid\n")
    refused = runner.invoke(app, ["validate", str(good), "--set", "steps"])
    assert refused.exit_code == 2 and "InvalidOverride: --set steps: " in refused.output


def test_what_only_a_deep_look_can_check_is_said(tmp_path: Path) -> None:
    file = tmp_path / "custom.yaml"
    custom = "type: Custom, custom: {entrypoint: 'mine:Algorithm'}"
    file.write_text(GOOD.replace("type: GRPO", custom))
    result = runner.invoke(app, ["validate", str(file)])
    assert result.exit_code == 0
    assert result.output.endswith(f"check it by `rlhf validate --deep {file}`\n")


def test_an_objective_of_gpus_whose_speed_nobody_knows_is_refused_at_its_line(
    tmp_path: Path,
) -> None:
    pools = "  resources: {nodePools: [{name: a, gpu: %s, memoryPerDevice: 80Gi}]}\n"
    path = tmp_path / "job.yaml"
    path.write_text(GOOD + pools % "MI300X" + "  placement: {objective: {type: DeviceTime}}\n")
    result = runner.invoke(app, ["validate", str(path)])
    assert result.exit_code == 2 and "1 problem in 1 file" in result.output
    assert "job.yaml:12:33: TimesUnknown" in result.output and "got gpu MI300X" in result.output
    path.write_text(path.read_text().replace("MI300X", "H100"))
    assert runner.invoke(app, ["validate", str(path)]).exit_code == 0


def test_standard_input_is_read_for_a_dash() -> None:
    assert runner.invoke(app, ["validate", "-"], input=GOOD).output == "<stdin>: sort is valid\n"
    result = runner.invoke(app, ["validate", "-"], input=BAD)
    assert result.exit_code == 2
    assert result.output.startswith("<stdin>:9:21: ")


@pytest.mark.parametrize(
    "now",
    [None, "spec: {", GOOD.replace("{name: sort}", "sort"), "[sort]", GOOD.replace("sort", "by")],
    ids=["gone", "no YAML", "a text as metadata", "a list", "another job"],
)
@pytest.mark.parametrize("overrides", [(), ("spec.schedule.steps=3",)], ids=["as it is", "set"])
def test_a_problem_is_told_without_its_line_when_the_file_is_another_by_now(
    good: Path, now: str | None, overrides: tuple[str, ...]
) -> None:
    (job,) = read_jobs(good, overrides)
    good.unlink() if now is None else good.write_text(now)
    of_manifest = ManifestError([Problem(("spec", "data"), "is too old")])
    for error in (of_manifest, DataNotFound("nothing there").at("spec", "data")):
        with pytest.raises(type(error)) as caught, annotate_lines(good, job, overrides):
            raise error
        assert str(caught.value) == str(error) and caught.value.position == ""


def test_the_flag_of_kubectl_may_stand_before_the_file(good: Path) -> None:
    assert runner.invoke(app, ["validate", "-f", str(good)]).exit_code == 0


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    result = runner.invoke(app, ["validate", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "no such file" in result.output


def test_the_installed_command_exits_with_two(bad: Path) -> None:
    command = [sys.executable, "-c", "from rlhf_cli.app import main; main()", "validate", str(bad)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "2 problems in 1 file"
    assert done.stderr == ""


def test_validating_and_explaining_import_nothing_heavy(good: Path) -> None:
    heavy = ["torch", "ray", "vllm", "transformers", "numpy", "rlhf_flow", "rlhf_runtime", "rich"]
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from rlhf_cli.app import app\n"
        f"assert CliRunner().invoke(app, ['validate', {str(good)!r}]).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['explain', 'spec']).exit_code == 0\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
