"""What `rlhf run` makes of a manifest that was written for a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_api.reading.manifest import load_file
from rlhf_cli.app import app
from rlhf_cli.run import ignored_sections

SMALLEST = Path(__file__).parents[1] / "rlhf_api" / "manifests" / "smallest.yaml"


def test_what_only_pods_have_is_named_and_done_without() -> None:
    secret = "{name: KEY, valueFrom: {secretKeyRef: {name: judge, key: api-key}}}"
    (job,) = load_file(SMALLEST, [f"spec.env=[{secret}]", "spec.hub={}"])
    assert ignored_sections(job) == ["hub", "env"]
    (plain,) = load_file(SMALLEST)
    assert ignored_sections(plain) == []


@pytest.mark.parametrize(("option", "field"), [("--steps", "steps"), ("--seed", "seed")])
def test_an_option_hides_no_override_of_the_same_field(option: str, field: str) -> None:
    override = f"spec.schedule.{field}=x"
    result = CliRunner().invoke(app, ["run", str(SMALLEST), option, "2", "--set", override])
    assert result.exit_code == 2
    assert f"{option} and --set say the same field: got {option} 2" in result.stderr
