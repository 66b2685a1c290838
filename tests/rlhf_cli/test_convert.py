"""`rlhf convert`: a manifest without deprecated fields; and `rlhf validate` names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_api.exits import ExitCode
from rlhf_cli.app import app

from ..rlhf_api.test_deprecations import OLD

NEW = OLD.replace("ttlSecondsAfterFinished", "clusterTTLSeconds")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(OLD)
    return path


def rlhf(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, input=stdin)
    return result.exit_code, result.stdout


def test_a_deprecated_field_is_a_warning_and_not_a_problem(file: Path) -> None:
    code, shown = rlhf("validate", str(file))
    assert code == ExitCode.DONE and "sort is valid" in shown
    assert "warning: spec.ttlSecondsAfterFinished is deprecated" in shown
    file.write_text(NEW)
    assert "warning" not in rlhf("validate", str(file))[1]


def test_the_file_itself_is_rewritten_once(file: Path) -> None:
    assert rlhf("convert", str(file)) == (
        ExitCode.DONE,
        f"{file}: sort: spec.ttlSecondsAfterFinished is spec.clusterTTLSeconds\n",
    )
    assert file.read_text() == NEW
    assert rlhf("convert", str(file)) == (ExitCode.DONE, f"{file}: nothing to convert\n")


def test_check_writes_nothing(file: Path) -> None:
    code, shown = rlhf("convert", "--check", str(file))
    assert code == ExitCode.MANIFEST and f"run `rlhf convert {file}`" in shown
    assert file.read_text() == OLD
    file.write_text(NEW)
    assert rlhf("convert", "--check", str(file))[0] == ExitCode.DONE


def test_standard_input_goes_to_standard_output() -> None:
    assert rlhf("convert", "-", stdin=OLD) == (ExitCode.DONE, NEW)


def test_another_file_may_be_named(file: Path) -> None:
    other = file.with_name("new.yaml")
    assert rlhf("convert", str(file), "--output", str(other))[0] == ExitCode.DONE
    assert (file.read_text(), other.read_text()) == (OLD, NEW)
