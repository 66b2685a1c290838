"""What the driver says is kept, once there is a place for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

from rlhf_cli.driver_log import DriverLog


def test_everything_is_kept_also_what_came_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "driver.log"
    with DriverLog() as log:
        typer.echo("first", err=True)
        assert not file.parent.exists()
        log.keep_at(file)
        print("second", file=sys.stderr)
    typer.echo("after", err=True)
    assert file.read_text() == "first\nsecond\n"
    assert capsys.readouterr().err == "first\nsecond\nafter\n"


def test_a_later_driver_goes_on_in_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "driver.log"
    for number in range(2):
        with DriverLog() as log:
            log.keep_at(file)
            typer.echo(f"driver {number}", err=True)
    assert file.read_text() == "driver 0\ndriver 1\n"


def test_a_file_that_cannot_be_made_is_told_and_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("a file")
    with DriverLog() as log:
        log.keep_at(tmp_path / "logs" / "driver.log")
        typer.echo("on", err=True)
    told = capsys.readouterr().err
    assert "cannot be kept" in told and told.endswith("on\n")
