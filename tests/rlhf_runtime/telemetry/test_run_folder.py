"""What is written is read back, whatever happened to the writer."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_runtime.telemetry.errors import CannotRecord, NotARun, RunFolderLost
from rlhf_runtime.telemetry.records import EvaluationRecord, Outcome, RunRecord, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder

from ...depth import examples
from ...small_disk import small_disk
from .conftest import MakeRun, MakeStep


def test_a_run_is_read_back_as_written(make_run: MakeRun, make_step: MakeStep) -> None:
    records = make_run(3).read()
    assert [step.step for step in records.steps] == [1, 2, 3]
    assert records.steps[0].metrics == make_step(1).metrics
    assert records.steps[2].memory == make_step(3).memory
    assert [e.metrics["evaluation/exact_match"] for e in records.evaluations] == [0.25, 0.875]
    assert records.startup is not None and records.startup.phases == {"ray": 2.0, "engines": 8.0}
    assert records.end is not None and records.end.outcome is Outcome.SUCCEEDED
    assert records.damaged_lines == 0


def test_every_line_says_its_kind_and_is_strict_json(make_run: MakeRun) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"not JSON: {constant}")

    lines = make_run(2).metrics.read_text().splitlines()
    kinds = [json.loads(line, parse_constant=refuse)["kind"] for line in lines]
    assert kinds == [
        "run", "startup", "warm_start", "warm_start", "evaluation", "step", "step", "evaluation",
        "end",
    ]  # fmt: skip


def test_values_that_json_lacks_survive(tmp_path: Path, make_step: MakeStep) -> None:
    metrics = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5}
    with RunFolder(tmp_path) as folder:
        folder.append(make_step(1, metrics=metrics))
    read = folder.read().steps[0].metrics
    assert math.isnan(read["a"])
    assert (read["b"], read["c"], read["d"]) == (math.inf, -math.inf, 1.5)


def test_spans_are_read_for_the_steps_asked_for(make_run: MakeRun, make_step: MakeStep) -> None:
    spans = make_run(12).read_spans({1, 12, 99})
    assert sorted(spans) == [1, 12]
    assert spans[12] == make_step(12).spans


def test_a_cut_off_last_line_is_skipped_and_counted(make_run: MakeRun) -> None:
    folder = make_run(3, outcome=None)
    for path in (folder.metrics, folder.timeline):
        path.write_bytes(path.read_bytes()[:-20])
    records = folder.read()
    assert [step.step for step in records.steps] == [1, 2, 3]
    assert [e.step for e in records.evaluations] == [0]
    assert records.damaged_lines == 1
    assert sorted(folder.read_spans({1, 2, 3})) == [1, 2]


def test_a_resumed_run_drops_the_cut_off_line_and_replaces_steps(
    make_run: MakeRun, make_step: MakeStep
) -> None:
    folder = make_run(3, outcome=None)
    run = folder.read().runs[0]
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-20])
    with RunFolder(folder.path) as again:
        again.append(run)
        again.append(make_step(3, metrics={"reward/mean": 9.0}))
    records = again.read()
    assert records.damaged_lines == 0
    assert len(records.runs) == 2
    assert [step.step for step in records.steps] == [1, 2, 3]
    assert records.steps[2].metrics == {"reward/mean": 9.0}
    assert records.steps_repeated == 1


def test_a_new_start_takes_back_the_earlier_end(make_run: MakeRun) -> None:
    folder = make_run(2, outcome=Outcome.FAILED)
    with RunFolder(folder.path) as again:
        again.append(folder.read().runs[0])
    assert again.read().end is None


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=1, max_value=2000))
def test_a_file_cut_at_any_byte_gives_all_whole_records(tmp_path: Path, cut: int) -> None:
    with RunFolder(tmp_path / "cut") as folder:
        folder.metrics.unlink(missing_ok=True)
        folder.append(RunRecord("job", "GRPO", "1 CPU", ".", 5, 0.0))
        for step in range(1, 6):
            folder.append(EvaluationRecord(step, {"evaluation/exact_match": step / 10}))
    whole = folder.metrics.read_bytes()
    folder.metrics.write_bytes(whole[:cut])
    records = folder.read()
    lines = whole[:cut].count(b"\n")
    assert len(records.runs) + len(records.evaluations) >= lines
    assert len(records.runs) + len(records.evaluations) + records.damaged_lines <= lines + 1


@pytest.mark.parametrize("line", ["[]", "{}", '{"kind": "step"}', '{"kind": "new"}', "\x00\x00"])
def test_foreign_lines_are_counted_not_fatal(make_run: MakeRun, line: str) -> None:
    folder = make_run(1)
    with folder.metrics.open("a") as file:
        file.write(line + "\n")
    assert folder.read().damaged_lines == 1


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="has no metrics.jsonl"):
        RunFolder(tmp_path).read()


def test_records_are_on_disk_before_the_folder_is_closed(
    tmp_path: Path, make_step: MakeStep
) -> None:
    with RunFolder(tmp_path) as folder:
        folder.append(make_step(1))
        assert len(RunFolder(tmp_path).read().steps) == 1


def test_spans_stay_out_of_the_metrics(tmp_path: Path, make_step: MakeStep) -> None:
    step: StepRecord = make_step(1)
    with RunFolder(tmp_path) as folder:
        folder.append(step)
    assert "spans" not in folder.metrics.read_text()
    assert folder.read_spans([1])[1] == step.spans


def test_a_record_that_does_not_fit_is_refused_and_leaves_whole_lines(
    tmp_path: Path, make_step: MakeStep
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk, RunFolder(disk.seen / "run") as folder:
        folder.append(make_step(1))
        disk.fill()
        fitting = 1
        with pytest.raises(CannotRecord, match="No space left on device"):
            while True:  # what is left of the file's last page is still free
                folder.append(make_step(fitting + 1))
                fitting += 1
        lines = folder.metrics.read_bytes().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, fitting + 1))
        disk.empty()
        folder.append(make_step(fitting + 1))
        assert folder.read().steps[-1].step == fitting + 1


def test_a_step_that_is_repeated_replaces_what_it_saved(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_lines("pairs", 12, b'{"step": 12}\n' * 3)
    folder.write_lines("pairs", 12, b'{"step": 12}\n')
    folder.write_lines("pairs", 1234567, b"")
    found = {path.name: path.read_bytes() for path in (folder.saved / "pairs").iterdir()}
    assert found == {"step-000012.jsonl": b'{"step": 12}\n', "step-1234567.jsonl": b""}


def test_lines_that_do_not_fit_are_refused_and_no_file_is_half_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        folder = RunFolder(disk.seen / "run")
        folder.write_lines("pairs", 1, b"first\n")
        with pytest.raises(CannotRecord, match="No space left on device"):
            folder.write_lines("pairs", 2, b"second\n" * 2**20)
        assert [path.name for path in (folder.saved / "pairs").glob("*.jsonl")] == [
            "step-000001.jsonl"
        ]


def test_a_file_that_does_not_fit_keeps_its_former_text(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        folder = RunFolder(disk.seen / "run")
        folder.write_manifest("first")
        disk.fill()
        with pytest.raises(CannotRecord, match="the same command is given again") as caught:
            folder.write_manifest("second " * 1000)
        assert caught.value.is_disk_full
        assert folder.read_manifest() == "first"
        assert sorted(path.name for path in folder.path.iterdir()) == ["manifest.yaml"]


def delete_it(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)


def move_it(folder: RunFolder) -> None:
    folder.path.rename(folder.path.with_name("moved"))


def put_another_there(folder: RunFolder) -> None:
    move_it(folder)
    folder.path.mkdir()
    folder.metrics.write_text("{}\n")


@pytest.mark.parametrize(
    ("meanwhile", "says"),
    [
        (delete_it, "got no .*/run any more"),
        (move_it, "got no .*/run any more"),
        (put_another_there, "got another .*/metrics.jsonl, of 3 bytes instead of"),
        (lambda folder: folder.metrics.unlink(), "got no .*/metrics.jsonl any more"),
        (lambda folder: folder.timeline.unlink(), "got no .*/timeline.jsonl any more"),
    ],
)
def test_a_folder_that_somebody_takes_away_is_told_and_nothing_is_made_anew(
    tmp_path: Path,
    make_step: MakeStep,
    meanwhile: Callable[[RunFolder], None],
    says: str,
) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.append(make_step(1))
        folder.require_intact()
        meanwhile(folder)
        left = sorted(tmp_path.rglob("*"))
        for use in (
            folder.require_intact,
            lambda: folder.append(make_step(2)),
            lambda: folder.write_lines("pairs", 2, b"{}"),
            lambda: folder.write_report("<html>"),
        ):
            with pytest.raises(RunFolderLost, match=says) as raised:
                use()
        assert isinstance(raised.value, CannotRecord) and raised.value.exit_code == 4
        assert sorted(tmp_path.rglob("*")) == left


def test_a_copy_of_the_folder_that_takes_its_place_is_written_on(
    tmp_path: Path, make_step: MakeStep
) -> None:
    """As when it is moved to another disk and linked."""
    with RunFolder(tmp_path / "run") as folder:
        folder.append(make_step(1))
        move_it(folder)
        folder.path.symlink_to(tmp_path / "moved")
        folder.append(make_step(2))
    assert [step.step for step in RunFolder(tmp_path / "moved").read().steps] == [1, 2]
