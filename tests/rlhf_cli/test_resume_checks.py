"""What `rlhf run` makes of a folder that it is given."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rlhf_api.changes import spec_document
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.manifests import annotate_lines
from rlhf_cli.recorded_run import manifest_text
from rlhf_cli.resume_checks import (
    StartFacts,
    check_changes,
    note_checkpoint_mismatch,
    open_store,
    prepare_run_folder,
)
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.errors import CannotResume, FolderUnusable, StorageUnusable
from rlhf_runtime.telemetry.records import (
    EARLY_STOP,
    EndRecord,
    EvaluationRecord,
    Outcome,
    Record,
    ResumedRecord,
    RunRecord,
    StepRecord,
)
from rlhf_runtime.telemetry.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-sort-grpo.yaml"
BEGUN = RunRecord("sort", "GRPO", "1 CPU rank", "out", 9, 0.0)
TRAINED = StepRecord(1, {}, {}, 1.0, 1)


def folder_with(place: Path, *records: Record) -> RunFolder:
    with RunFolder(place / "run") as folder:
        for record in records:
            folder.append(record)
    return folder


def job_of(steps: int) -> RLHFJob:
    (job,) = load_file(EXAMPLE, [f"spec.schedule.steps={steps}"])
    return job


def test_a_folder_without_a_run_has_everything_to_do(tmp_path: Path) -> None:
    assert prepare_run_folder(RunFolder(tmp_path), job_of(9), fresh=False)


def test_a_run_that_did_not_finish_goes_on(tmp_path: Path) -> None:
    failed = EndRecord(Outcome.FAILED, 1.0, "DataNotFound", "no such file")
    assert prepare_run_folder(folder_with(tmp_path, BEGUN, TRAINED, failed), job_of(9), fresh=False)
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


def test_starting_over_keeps_the_earlier_run(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED)
    assert prepare_run_folder(folder, job_of(9), fresh=True)
    assert (tmp_path / "run.1" / "metrics.jsonl").is_file()
    assert not folder.metrics.exists()


def test_a_finished_run_has_nothing_to_do_but_further_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED, EndRecord(Outcome.SUCCEEDED, 1.0))
    assert not prepare_run_folder(folder, job_of(9), fresh=False)
    assert "already finished" in capsys.readouterr().err
    assert prepare_run_folder(folder, job_of(10), fresh=False)


EARLY = "spec.schedule.earlyStop={patience: 2}"
MORE_PATIENCE = "a larger schedule.earlyStop.patience"


@pytest.mark.parametrize(
    ("changes", "continues"),
    [
        pytest.param([EARLY], MORE_PATIENCE, id="as before"),
        pytest.param([EARLY, "spec.schedule.steps=20"], MORE_PATIENCE, id="more steps"),
        pytest.param([EARLY, "spec.schedule.earlyStop.patience=1"], MORE_PATIENCE, id="less"),
        pytest.param([EARLY, "spec.schedule.earlyStop.patience=3"], None, id="more patience"),
        pytest.param([EARLY, "spec.checkpoint.keepBest=LengthMean"], None, id="another metric"),
        pytest.param([], None, id="without it"),
        pytest.param(["spec.schedule.steps=6"], "more --steps", id="without it, no more steps"),
    ],
)
def test_a_run_that_ended_early_has_more_to_do_if_the_manifest_no_longer_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], continues: str | None
) -> None:
    """`continues`: what the message names to go on; None: there is more to do."""
    values = {"evaluation/reward_mean": 0.5}
    evaluations = [
        EvaluationRecord(step, values | {"evaluation/length_mean": float(step)})
        for step in (0, 3, 6)
    ]
    # The first start was killed after step 8, behind the checkpoint from which the second resumed.
    lost = [StepRecord(step, {}, {}, 1.0, 1) for step in range(1, 9)]
    resumed = [BEGUN, ResumedRecord(5), StepRecord(6, {}, {}, 1.0, 1)]
    ended = EndRecord(Outcome.SUCCEEDED, 1.0, EARLY_STOP, "training ended early")
    folder = folder_with(tmp_path, BEGUN, *evaluations, *lost, *resumed, ended)
    (job,) = load_file(EXAMPLE, ["spec.schedule.steps=9", *changes])
    assert prepare_run_folder(folder, job, fresh=False) == (continues is None)
    if continues is not None:
        text = capsys.readouterr().err
        assert f"; {continues} continue" in text
        is_early = continues == MORE_PATIENCE
        assert ("training ended early, after step 6 of" in text) == is_early


def test_a_finished_run_does_not_take_more_steps_if_its_evaluations_end_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations = [EvaluationRecord(step, {"evaluation/reward_mean": 0.5}) for step in (0, 1)]
    folder = folder_with(tmp_path, BEGUN, TRAINED, *evaluations, EndRecord(Outcome.SUCCEEDED, 1.0))
    for patience, has_more in ((1, False), (2, True)):
        early = f"spec.schedule.earlyStop.patience={patience}"
        (job,) = load_file(EXAMPLE, ["spec.schedule.steps=20", early])
        assert prepare_run_folder(folder, job, fresh=False) == has_more
    assert f"; {MORE_PATIENCE} continues" in capsys.readouterr().err


def test_the_folder_of_an_evaluation_is_not_trained_into(tmp_path: Path) -> None:
    evaluated = [replace(BEGUN, total_steps=0), EvaluationRecord(150, {"evaluation/x": 0.5})]
    folder = folder_with(tmp_path, *evaluated, EndRecord(Outcome.SUCCEEDED, 1.0))
    with pytest.raises(FolderUnusable, match=r"the folder holds an evaluation: .* --output"):
        prepare_run_folder(folder, job_of(9), fresh=False)
    assert prepare_run_folder(folder, job_of(9), fresh=True)


def test_a_finished_run_of_another_manifest_is_not_this_ones(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED, EndRecord(Outcome.SUCCEEDED, 1.0))
    folder.manifest.write_text(EXAMPLE.read_text())
    changed = [
        "spec.schedule.steps=9",
        "spec.rollout.temperature=0.5",
        "spec.models.actor.training.learningRate=0.1",
    ]
    (job,) = load_file(EXAMPLE, changed)
    with pytest.raises(CannotResume, match=r"--fresh starts over") as caught:
        prepare_run_folder(folder, job, fresh=False)
    assert "spec.rollout.temperature" in str(caught.value) and "0.5" in str(caught.value)
    assert "learningRate" not in str(caught.value), "it may change"
    with pytest.raises(CannotResume, match=r"\n--set spec\.rollout\.temperature=0\.5: spec\.roll"):
        prepare_run_folder(
            folder, job, fresh=False, lines=partial(annotate_lines, EXAMPLE, job, changed)
        )
    (job,) = load_file(EXAMPLE, ["spec.schedule.steps=9"])
    assert not prepare_run_folder(folder, job, fresh=False)


def job_with_storage(uri: str) -> RLHFJob:
    (job,) = load_file(EXAMPLE, [f"spec.checkpoint.storage.uri={uri}"])
    return job


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("memory://job", "it ends with the process"),
        ("file://some/folder", "write file:///"),
        ("file://{place}/file/below", "allowed a folder or an address"),
        ("nowhere://job", "Protocol not known: nowhere"),
    ],
)
def test_a_place_that_cannot_keep_checkpoints_is_refused_at_once(
    tmp_path: Path, uri: str, says: str
) -> None:
    (tmp_path / "file").touch()
    job = job_with_storage(uri.format(place=tmp_path))
    with pytest.raises(StorageUnusable, match=says) as raised:
        open_store(job, RunFolder(tmp_path / "run"), fresh=False)
    assert "spec.checkpoint.storage.uri" in str(raised.value)


def test_a_place_is_found_by_the_manifest_or_lies_in_the_runs_folder(tmp_path: Path) -> None:
    job = job_with_storage(f"file://{tmp_path}/elsewhere")
    assert open_store(job, RunFolder(tmp_path), False).address == f"file://{tmp_path}/elsewhere"
    assert open_store(job_of(9), RunFolder(tmp_path), False).address == str(
        tmp_path / "checkpoints"
    )


class Told:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.mark.parametrize(
    ("is_known", "saved", "says"),
    [
        (True, True, ""),
        (False, False, ""),
        (False, True, "checkpoints of another run, up to step 4"),
        (True, False, "starts from the beginning"),
    ],
)
def test_a_folder_and_checkpoints_that_do_not_belong_together_are_told(
    tmp_path: Path, is_known: bool, saved: bool, says: str
) -> None:
    store, told = CheckpointStore(str(tmp_path)), Told()
    if saved:
        store.begin(4)
        store.commit(CheckpointRecord(4, 1, {}))
    note_checkpoint_mismatch(store, is_known, told)  # type: ignore[arg-type]
    assert [says in text for text in told.notices] == ([True] if says else [])


def test_a_resume_tells_every_field_that_differs_and_which_value_is_in_force(
    tmp_path: Path,
) -> None:
    folder, store = folder_with(tmp_path, BEGUN, TRAINED), CheckpointStore(str(tmp_path / "saved"))
    (before,) = load_file(
        EXAMPLE, ["spec.schedule.steps=9", "spec.models.actor.training.learningRate=0.1"]
    )
    folder.write_manifest(manifest_text(before))
    told = check_changes(job_of(12), folder, store, StartFacts("2 CPU ranks"))
    assert told == [
        "differs from the last start: spec.models.actor.training.learningRate is 0.0002, "
        "which is in force now, and was 0.1",
        "differs from the last start: spec.schedule.steps is 12, which is in force now, and was 9",
        "other devices than at the last start: 2 CPU ranks now, 1 CPU rank then",
    ]
    assert check_changes(before, folder, store, StartFacts("1 CPU rank")) == []
    empty = RunFolder(tmp_path / "none")
    assert check_changes(job_of(12), empty, store, StartFacts("2 CPU ranks")) == []
    store.begin(4)
    store.commit(CheckpointRecord(4, 1, spec_document(before.spec)))
    told = check_changes(job_of(12), empty, store, StartFacts("2 CPU ranks"))
    assert [line.partition(" is ")[0] for line in told] == [
        "differs from the checkpoint: spec.models.actor.training.learningRate",
        "differs from the checkpoint: spec.schedule.steps",
    ]


@pytest.mark.parametrize(
    ("before", "now", "is_noted"), [("a", "b", True), ("a", "a", False), ("", "b", False)]
)
def test_other_code_is_noted(tmp_path: Path, before: str, now: str, is_noted: bool) -> None:
    folder = folder_with(tmp_path, replace(BEGUN, code=before), TRAINED)
    folder.write_manifest(manifest_text(job_of(9)))
    store = CheckpointStore(str(tmp_path / "saved"))
    noted = check_changes(job_of(9), folder, store, StartFacts(code=now))
    assert [text.partition(":")[0] for text in noted] == (
        ["other code than at the last start"] if is_noted else []
    )


def test_a_checkpoint_of_a_release_with_fewer_fields_resumes(tmp_path: Path) -> None:
    job, store = job_of(9), CheckpointStore(str(tmp_path / "saved"))
    document = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    store.begin(4)
    store.commit(CheckpointRecord(4, 1, document))
    assert check_changes(job, RunFolder(tmp_path / "none"), store) == []


def test_what_differs_from_a_finished_run_changes_nothing_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED, EndRecord(Outcome.SUCCEEDED, 1.0))
    folder.write_manifest(manifest_text(job_of(9)))
    assert not prepare_run_folder(folder, job_of(8), fresh=False)
    told = capsys.readouterr().err
    assert "spec.schedule.steps is 8, which has no effect any more, and was 9" in told
