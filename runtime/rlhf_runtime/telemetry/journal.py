"""Where the controller tells what happens: files, terminal and trackers hear it from here."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.progress import Progress
from rlhf_runtime.telemetry.records import (
    EndRecord,
    EvaluationRecord,
    Outcome,
    ResumedRecord,
    RunRecord,
    StartupRecord,
    StepRecord,
    UnscoredRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.report import write_report
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.summary import summarize
from rlhf_runtime.telemetry.trackers import TrackerGroup

MOST_UNSCORED = 100
"""Records of one start of what could not be scored; metrics count the others, too."""
END_SECONDS = 10.0
"""How long one thread waits for another that writes how the run has ended."""


class Journal:
    """The one listener of a run's controller."""

    def __init__(self, folder: RunFolder, progress: Progress, trackers: TrackerGroup) -> None:
        self.folder = folder
        self._progress = progress
        self._trackers = trackers
        self._startup: dict[str, float] = {}
        self._noticed: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._unscored: set[tuple[str, str, str]] = set()
        self._ending = threading.Lock()
        self.outcome: Outcome | None = None
        """How the run has ended."""

    def begin(self, run: RunRecord) -> None:
        """The run starts."""
        self.folder.append(run)
        self._progress.begin(run)

    def started(self, phase: str, seconds: float) -> None:
        """A start-up phase is over."""
        self._startup[phase] = seconds
        self._progress.startup(phase, seconds)
        self.folder.append(StartupRecord(dict(self._startup)))

    def require_folder(self) -> None:
        """Find out whether there is still a place for what is to be told.

        Raises:
            RunFolderGone: the run's folder was deleted, moved or replaced.
        """
        self.folder.require_there()

    def notice_data(self, counts: Mapping[str, int]) -> None:
        """What became of the data's rows, by split and by why they were left out."""
        for split in ("train", "pretraining", "evaluation"):
            invalid, too_long = (counts.get(f"{split}_{why}", 0) for why in ("invalid", "too_long"))
            if invalid or too_long:
                self._progress.notice(
                    f"data.{split}: {invalid + too_long} rows skipped ({invalid} invalid, "
                    f"{too_long} with a prompt over rollout.maxPromptTokens); "
                    f"{counts[split]} are used"
                )
        if cut := counts.get("pretraining_cut"):
            self._progress.notice(
                f"data.pretraining: {cut} of {counts['pretraining']} texts are cut at "
                "rollout.maxPromptTokens + rollout.maxResponseTokens"
            )

    def notice(self, text: str) -> None:
        """Something that a person should read."""
        self._progress.notice(text)

    def notice_once(self, text: str) -> None:
        """The same, but a text that has been told is not told again."""
        if text not in self._noticed:
            self._noticed.add(text)
            self._progress.notice(text)

    def unscored(self, step: int, reward: str, failure: Failure) -> None:
        """A verifier could not score something: told once of each kind, and recorded once for each
        row, as long as there are not too many. What has scores after all is only told."""
        kind = (reward, failure.kind)
        if kind not in self._told:
            self._told.add(kind)
            self._progress.notice(f"reward {reward}: {failure}")
        row = (*kind, failure.row)
        is_known = row in self._unscored or len(self._unscored) >= MOST_UNSCORED
        if failure.only_together or is_known:
            return
        self._unscored.add(row)
        self.folder.append(
            UnscoredRecord(
                step, reward, failure.fault.value, failure.what, failure.row, failure.detail
            )
        )

    def warm_start(self, record: WarmStartRecord) -> None:
        """A step of the warm start is over."""
        self.folder.append(record)
        self._progress.warm_start(record)

    def lines(self, step: int, lines: Mapping[str, bytes]) -> None:
        """What a training step saves, by name."""
        for name, text in lines.items():
            self.folder.write_lines(name, step, text)

    def step(self, record: StepRecord) -> None:
        """A training step is over."""
        self.folder.append(record)
        self._trackers.log(record.step, record.metrics)
        self._progress.step(record)

    def evaluation(self, record: EvaluationRecord) -> None:
        """An evaluation is over."""
        self.folder.append(record)
        self._trackers.log(record.step, record.metrics)
        self._progress.evaluation(record)

    def saved(self, step: int, address: str) -> None:
        """There is a checkpoint of a step."""
        self._progress.saved(step, address)

    def resumed(self, step: int, address: str) -> None:
        """Workers go on from the checkpoint of a step."""
        self.folder.append(ResumedRecord(step))
        self._progress.resumed(step, address)

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """The workers failed; in so many seconds the restart of that number begins."""
        self._progress.restarting(number, seconds, reason, message)

    def end(self, outcome: Outcome, reason: str = "", message: str = "") -> None:
        """The run is over, one way or another: write summary and report.

        Nothing when that was told before. Another thread than the driver's may tell it.
        """
        if not self._ending.acquire(timeout=END_SECONDS):
            return  # the other thread hangs in it
        try:
            if self.outcome is not None:
                return
            self._trackers.close()
            self.folder.append(EndRecord(outcome, time.time(), reason, message))
            self.outcome = outcome
            summary = summarize(self.folder.read())
            self.folder.write_summary(summary.to_json())
            write_report(self.folder)
            self._progress.finish(summary, self._files())
        finally:
            self._ending.release()

    def close(self) -> None:
        """Give terminal and files back; safe after `end` and without it."""
        self._progress.close()
        self.folder.close()

    def _files(self) -> list[Path]:
        """What there is of this run; a model that an earlier end of it has left is not its own."""
        folder = self.folder
        written = (folder.report, folder.metrics, folder.saved, folder.tensorboard)
        model = (folder.model,) if self.outcome is Outcome.SUCCEEDED else ()
        return [path for path in (*written, *model) if path.exists()]
