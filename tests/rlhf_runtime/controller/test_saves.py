"""Checkpoints as the driver makes them: committed, pruned, told of when they fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import ray

from rlhf_api.reading.manifest import load_file
from rlhf_api.report import SavingProblem
from rlhf_api.spec.checkpoint import EVALUATION_REWARD, CheckpointSpec, JournalMode
from rlhf_planner.plan import local_pools, make_plan
from rlhf_runtime.checkpoint.record import SavedFile, new_digest
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.controller.saves import CheckpointManager, PendingCheckpoint
from rlhf_runtime.errors import CheckpointFailed, StorageFailed, StorageInUse
from rlhf_runtime.journal.folder import (
    JournalFolder,
    PassSettings,
    Position,
    pass_folder,
    pass_folders,
)

from ...waiting import wait_until

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml"
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]


class Told:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.steps: list[int] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    notice_once = notice

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        assert problem is SavingProblem.WRITE_FAILED
        self.notices.append(message)

    def saved(self, step: int, address: str) -> None:
        assert Path(address, "checkpoint.json").is_file()
        self.steps.append(step)


@ray.remote(num_cpus=0)
def fail() -> None:
    raise CheckpointFailed("OSError: [Errno 28] No space left on device")


def saves_of(folder: Path, **settings: Any) -> tuple[CheckpointManager, Told]:
    told = Told()
    spec = CheckpointSpec.model_validate(settings)
    return CheckpointManager(CheckpointStore(str(folder)), spec, {}, told), told  # type: ignore[arg-type]


def write(saves: CheckpointManager, step: int) -> PendingCheckpoint:
    """What ranks write, finished."""
    address = Path(saves.store.begin(step))
    (address / "__0_0.distcp").write_bytes(bytes(step))
    digest = new_digest()
    digest.update(bytes(step))
    files = {"__0_0.distcp": SavedFile(step, digest.hexdigest())}
    return PendingCheckpoint(step, 1, [ray.put(files)])


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path, keepLast=2)
    for step, reward in [(1, 0.5), (2, 0.9), (3, 0.1), (4, 0.2), (5, 0.3)]:
        saves.record_evaluation(step, {EVALUATION_REWARD: reward})
        saves.commit(write(saves, step))
    assert told.steps == [1, 2, 3, 4, 5] and told.notices == []
    assert saves.store.steps() == [5, 4, 2]
    newest = saves.newest()
    assert newest is not None and newest.record.metrics == {EVALUATION_REWARD: 0.3}


def test_answers_stay_as_long_as_one_of_the_last_checkpoints_needs_them(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path / "checkpoints", keepLast=2)
    settings = PassSettings("same", "code")
    saves.journal = JournalFolder(tmp_path / "journal", settings, JournalMode.EXACT, told.notice)
    saves.journal.begin(0)
    for step in range(1, 6):
        pass_folder(tmp_path / "journal", Position(step)).mkdir()
    kept = []
    for step, reward in [(1, 0.9), (3, 0.1), (5, 0.2)]:
        saves.record_evaluation(step, {EVALUATION_REWARD: reward})
        saves.commit(write(saves, step))
        saves.limit_journal(Position(step))
        kept.append(min(pass_folders(tmp_path / "journal")).step)
    assert kept == [1, 1, 3] and told.notices == []
    assert saves.store.steps() == [5, 3, 1], "the best one needs none: it is older"


def test_the_best_is_the_intact_one_with_the_largest_metric(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path, keepLast=9)
    assert saves.better_than(0) is None
    for step, reward in [(1, 0.5), (2, 0.9), (3, 0.1), (4, 0.5)]:
        saves.record_evaluation(step, {EVALUATION_REWARD: reward})
        saves.commit(write(saves, step))
    saves.commit(write(saves, 5))
    assert best_step(saves, 5) == 2 and told.notices == []
    (tmp_path / "step-00000002" / "__0_0.distcp").write_bytes(b"")
    assert best_step(saves, 5) == 4, "of equal ones the later"
    (text,) = told.notices
    assert "step 2" in text and "__0_0.distcp has 0 bytes instead of 2" in text
    for step in (1, 3, 4):
        (tmp_path / f"step-{step:08d}" / "__0_0.distcp").unlink()
    assert best_step(saves, 5) is None, "the last one was not evaluated"


def test_weights_without_a_checkpoint_may_be_the_best(tmp_path: Path) -> None:
    saves, _ = saves_of(tmp_path)
    saves.record_evaluation(1, {EVALUATION_REWARD: 0.5})
    saves.commit(write(saves, 1))
    for reward, best in ((0.6, None), (0.5, None), (0.4, 1)):
        # The checkpoint of this step could not be written.
        saves.record_evaluation(2, {EVALUATION_REWARD: reward})
        assert best_step(saves, 2) == best
    assert best_step(saves, 1) is None, "its own weights"
    assert best_step(saves_of(tmp_path, keepBest="None")[0], 2) is None


def best_step(saves: CheckpointManager, step: int) -> int | None:
    best = saves.better_than(step)
    return None if best is None else best.record.step


def test_a_checkpoint_has_all_evaluations_until_its_step(tmp_path: Path) -> None:
    saves, _ = saves_of(tmp_path, keepLast=9)
    rewards = [(step, {EVALUATION_REWARD: step / 8}) for step in range(4)]
    for step, metrics in rewards:
        saves.record_evaluation(step, {**metrics, "evaluation/other": 1.0})
        if step:
            saves.commit(write(saves, step))
    saves.record_evaluation(4, {EVALUATION_REWARD: 1.0})
    (tmp_path / "step-00000003" / "__0_0.distcp").write_bytes(b"")
    newest = saves.newest()
    assert newest is not None and [*newest.record.evaluations] == rewards[:3]
    assert saves.evaluations == rewards[:3], "those after the checkpoint are repeated"
    shutil.rmtree(tmp_path)
    assert saves.newest() is None and saves.evaluations == []


def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path)
    for step in (1, 2):
        saves.commit(write(saves, step))
    (tmp_path / "step-00000002" / "__0_0.distcp").write_bytes(b"")
    newest = saves.newest()
    assert newest is not None and newest.record.step == 1
    (text,) = told.notices
    assert "step 2" in text and "__0_0.distcp has 0 bytes instead of 2" in text


def test_a_damaged_one_ahead_does_not_push_out_the_good_ones(tmp_path: Path) -> None:
    saves, _ = saves_of(tmp_path, keepLast=1, keepBest="None")
    for step in (4, 6):
        saves.commit(write(saves, step))
    saves.commit(write(saves, 5))
    assert saves.store.steps() == [5]


def test_what_attempts_have_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    saves, _ = saves_of(tmp_path)
    for step in (1, 3):
        saves.store.begin(step)
    saves.commit(write(saves, 2))
    assert {entry.name for entry in tmp_path.iterdir()} == {
        saves.store.begin(3).rsplit("/", 1)[-1],
        "step-00000002",
    }


def test_old_ones_that_cannot_be_deleted_harm_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, told = saves_of(tmp_path, keepLast=1, keepBest="None", onError="Fail")
    saves.commit(write(saves, 1))

    def slow_down(step: int) -> None:
        raise StorageFailed("SlowDown")

    monkeypatch.setattr(saves.store, "remove", slow_down)
    saves.commit(write(saves, 2))
    assert told.steps == [1, 2] and "SlowDown" in told.notices[0]
    assert saves.store.read(2).record.step == 2


def test_one_that_cannot_be_written_is_told_and_leaves_the_others(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path)
    saves.commit(write(saves, 1))
    saves.store.begin(2)
    saves.commit(PendingCheckpoint(2, 1, [fail.remote()]))
    (text,) = told.notices
    assert "step 2" in text and "No space left" in text and "training goes on" in text
    assert saves.store.steps() == [1] and told.steps == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]


def test_what_other_pools_still_write_is_waited_for_and_goes_too(tmp_path: Path) -> None:
    """One pool fails at once; the other writes on until it is told that the first has failed."""
    saves, told = saves_of(tmp_path)
    address, failed = Path(saves.store.begin(1)), tmp_path / "failed"

    @ray.remote(num_cpus=0)
    def fail_first() -> None:
        failed.touch()
        raise CheckpointFailed("OSError: [Errno 28] No space left on device")

    @ray.remote(num_cpus=0)
    def write_late() -> None:
        wait_until(failed.exists, 60.0, "the other pool to fail")
        (address / "b").mkdir()
        (address / "b" / "late.distcp").touch()

    saves.commit(PendingCheckpoint(1, 2, [fail_first.remote(), write_late.remote()]))
    assert "No space left" in told.notices[0] and not address.exists()


def test_or_it_ends_the_job(tmp_path: Path) -> None:
    saves, _ = saves_of(tmp_path, onError="Fail")
    with pytest.raises(CheckpointFailed, match="No space left"):
        saves.commit(PendingCheckpoint(2, 1, [fail.remote()]))


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    saves, told = saves_of(tmp_path / "file")
    assert saves.begin([], 3) == []
    assert "step 3 could not be written" in told.notices[0]


def test_who_has_lost_the_place_to_another_run_ends(tmp_path: Path) -> None:
    saves, _ = saves_of(tmp_path)
    saves.store.claim()
    CheckpointStore(str(tmp_path)).claim()
    with pytest.raises(StorageInUse):
        saves.begin([], 1)


def test_what_cannot_be_read_now_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, told = saves_of(tmp_path)
    saves.commit(write(saves, 1))

    def unreachable(name: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(saves.store, "_record", unreachable)
    with pytest.raises(StorageFailed, match="no route to host"):
        saves.newest()
    assert told.notices == []


def test_checkpoints_that_are_deleted_are_told_once_and_the_next_one_is_written(
    tmp_path: Path,
) -> None:
    saves, told = saves_of(tmp_path / "saved")
    saves.claim()
    saves.commit(write(saves, 1))
    shutil.rmtree(tmp_path / "saved")
    for step in (2, 3):
        saves.begin([], step)
        saves.commit(write(saves, step))
    (text,) = told.notices
    assert "got none of step 1 any more" in text and "begins at the job's start" in text
    assert told.steps == [1, 2, 3] and saves.newest_step == 3
    other = CheckpointStore(str(tmp_path / "saved"))
    other.claim()
    with pytest.raises(StorageInUse):
        saves.begin([], 4)


def test_one_of_several_checkpoints_that_is_deleted_is_told(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path, keepLast=2)
    for step in (1, 2, 3):
        saves.begin([], step)
        saves.commit(write(saves, step))
    assert told.notices == [], "the oldest one has gone by itself"
    shutil.rmtree(tmp_path / "step-00000003")
    saves.begin([], 4)
    (text,) = told.notices
    assert "got none of step 3 any more" in text and "begins from step 2" in text
    assert saves.newest_step == 2


def test_a_file_that_is_deleted_while_a_checkpoint_is_written_is_missed(tmp_path: Path) -> None:
    saves, told = saves_of(tmp_path)
    finishing = write(saves, 1)
    (written,) = tmp_path.glob("*/__0_0.distcp")
    written.unlink()
    saves.commit(finishing)
    assert told.steps == [] and saves.store.steps() == []
    assert "could not be written" in told.notices[0] and "__0_0.distcp" in told.notices[0]


def test_a_checkpoint_says_whose_model_the_job_leaves(tmp_path: Path) -> None:
    (job,) = load_file(EXAMPLE)
    _, plan = make_plan(job, local_pools(job, 1))
    saves, _ = saves_of(tmp_path)
    saves.plan = plan
    saves.commit(write(saves, 1))
    assert saves.store.read(1).record.policy == "actor"
