"""`rlhf explain`: prints explanations; an unknown path ends with exit code 2 and what is near."""

from __future__ import annotations

from typer.testing import CliRunner

from rlhf_api.reading.explain import explain
from rlhf_cli.app import app

runner = CliRunner()


def test_the_explanation_is_printed_as_it_is() -> None:
    assert runner.invoke(app, ["explain"]).output == explain()
    assert runner.invoke(app, ["explain", "spec.rollout"]).output == explain("spec.rollout")
    assert runner.invoke(app, ["explain", "-r", "spec"]).output == explain("spec", recursive=True)


def test_an_unknown_path_goes_to_stderr_with_its_reason() -> None:
    result = runner.invoke(app, ["explain", "spec.algoritm"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("UnknownField: spec has no field algoritm")
    assert "did you mean algorithm?" in result.stderr
