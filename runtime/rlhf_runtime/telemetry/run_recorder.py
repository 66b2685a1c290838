"""RunRecorder: passes the events of a run to its files, progress displays and trackers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rlhf_api.plan import Plan
from rlhf_api.report import SavingProblem
from rlhf_runtime.hooks import UntilWritten, write_once
from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.progress import Progress
from rlhf_runtime.telemetry.records import (
    EARLY_STOP,
    EndRecord,
    EvaluationRecord,
    Outcome,
    Record,
    ResumedRecord,
    RunRecord,
    StartupRecord,
    StepRecord,
    UnscoredRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.report import write_report
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind
from rlhf_runtime.telemetry.summary import summarize
from rlhf_runtime.telemetry.trackers import TrackerGroup

# Maximum number of UnscoredRecords per start. Metrics count all.
MAX_UNSCORED = 100
# Maximum wait of a thread for another one that records the end of the run.
END_SECONDS = 10.0


class RunRecorder:
    """The receiver of all events of a run's controller."""

    def __init__(
        self,
        folder: RunFolder,
        progress: Progress,
        trackers: TrackerGroup,
        until_written: UntilWritten = write_once,
    ) -> None:
        """
        Args:
            until_written: calls a write, again and again while the disk is full.
        """
        self.folder = folder
        self._until_written = until_written
        self._progress = progress
        self._trackers = trackers
        self._startup: dict[str, float] = {}
        # Texts of `notice_once`.
        self._noticed: set[str] = set()
        # Rewards and kinds of their failures that were shown.
        self._reported: set[tuple[str, str]] = set()
        # The same, with the row: failures that were recorded.
        self._unscored: set[tuple[str, str, str]] = set()
        self._ending = threading.Lock()
        # Why training ended before its last step. Empty: it did not.
        self.early_stop = ""
        # Step whose weights are the final model. None: no model was saved.
        self._model_step: int | None = None
        # Outcome of the run. None: not ended.
        self.outcome: Outcome | None = None
        self._trains = True

    def describe(self, manifest: str, plan: Plan) -> None:
        """Write the manifest in force and its plan."""
        self._until_written(partial(self.folder.write_manifest, manifest))
        self._until_written(partial(self.folder.write_plan, plan))

    def begin(self, run: RunRecord) -> None:
        """The run starts, or its workers start again."""
        # Workers that were lost may have ended early before a checkpoint: these decide again.
        self.early_stop = ""
        self._trains = not run.is_evaluation
        self._append(run)
        self._progress.begin(run)

    def started(self, phase: str, seconds: float) -> None:
        """A start-up phase is over."""
        self._startup[phase] = seconds
        self._progress.startup(phase, seconds)
        # Each record repeats all phases: the last one counts.
        self._append(StartupRecord(dict(self._startup)))

    def require_folder(self) -> None:
        """Check that the run's folder still exists.

        Raises:
            RunFolderLost: the run's folder was deleted, moved or replaced.
        """
        self.folder.require_intact()

    def notice_data(self, counts: Mapping[str, int]) -> None:
        """Report the rows of the data that are skipped or cut, by split and cause."""
        for split in ("train", "pretraining", "evaluation"):
            invalid, too_long = (
                counts.get(f"{split}_{cause}", 0) for cause in ("invalid", "too_long")
            )
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
        """Show a text."""
        self._progress.notice(text)

    def notice_once(self, text: str) -> None:
        """Show a text, but not a second time."""
        if text not in self._noticed:
            self._noticed.add(text)
            self._progress.notice(text)

    def unscored(self, step: int, reward: str, failure: Failure) -> None:
        """A verifier could not score a response: show it once per kind, record it once per row."""
        kind = (reward, failure.kind)
        if kind not in self._reported:
            self._reported.add(kind)
            self._progress.notice(f"reward {reward}: {failure}")
        row = (*kind, failure.row)
        is_recorded = row in self._unscored or len(self._unscored) >= MAX_UNSCORED
        # A failure of the batch only: its responses were scored one by one.
        if failure.only_together or is_recorded:
            return
        self._unscored.add(row)
        self._append(
            UnscoredRecord(
                step, reward, failure.fault.value, failure.what, failure.row, failure.detail
            )
        )

    def warm_start(self, record: WarmStartRecord) -> None:
        """A step of the warm start is over."""
        self._append(record)
        self._progress.warm_start(record)

    def lines(self, step: int, lines: Mapping[str, bytes]) -> None:
        """Write the lines that a training step saves, by name."""
        for name, text in lines.items():
            self._until_written(partial(self.folder.write_lines, name, step, text))

    def samples(self, samples: Sequence[ResponseSample]) -> None:
        """Write some responses of a pass; none: nothing is written."""
        if not samples:
            return
        self._until_written(partial(self.folder.write_samples, samples))
        if samples[0].kind is SampleKind.EVALUATION:
            self._trackers.log_samples(samples[0].step, samples)

    def step(self, record: StepRecord) -> None:
        """A training step is over."""
        # The file comes first: it must not miss a step that was shown.
        self._append(record)
        self._trackers.log(record.step, record.metrics)
        self._progress.step(record)

    def evaluation(self, record: EvaluationRecord) -> None:
        """An evaluation is over."""
        self._append(record)
        self._trackers.log(record.step, record.metrics)
        self._progress.evaluation(record)

    def saved(self, step: int, address: str) -> None:
        """A checkpoint of a step was written."""
        self._progress.saved(step, address)

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        """The checkpoint of a step could not be written."""
        self._progress.not_saved(step, problem, message)

    def resumed(self, step: int, address: str) -> None:
        """Workers resume from the checkpoint of a step."""
        self._append(ResumedRecord(step))
        self._progress.resumed(step, address)

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        """The workers failed; restart `number` begins in `seconds`."""
        self._progress.restarting(number, seconds, reason, message)

    def stopped_early(self, text: str) -> None:
        """Training has ended before its last step: show why, and record it at the end."""
        self.early_stop = text
        self._progress.notice(text)

    def model_saved(self, step: int) -> None:
        """The final model has the weights of a step."""
        self._model_step = step

    def end(self, outcome: Outcome, reason: str = "", message: str = "") -> None:
        """The run is over: write summary and report of a training. Later calls do nothing."""
        # Another thread than the driver's may call this, while the driver hangs in it.
        if not self._ending.acquire(timeout=END_SECONDS):
            return  # the other thread hangs in it
        try:
            if self.outcome is not None:
                return
            self._trackers.close()
            if outcome is not Outcome.SUCCEEDED:
                # The error that ended the run matters more than a full disk: no wait.
                self._until_written = write_once
            if outcome is Outcome.SUCCEEDED and self.early_stop:
                reason, message = EARLY_STOP, self.early_stop
            self._append(EndRecord(outcome, time.time(), reason, message, self._model_step))
            self.outcome = outcome
            if not self._trains:
                return
            # From the files: records of earlier starts count, too.
            summary = summarize(self.folder.read())
            self._until_written(partial(self.folder.write_summary, summary.to_json()))
            self._until_written(partial(write_report, self.folder))
            self._progress.finish(summary, self._files())
        finally:
            self._ending.release()

    def _append(self, record: Record) -> None:
        self._until_written(partial(self.folder.append, record))

    def close(self) -> None:
        """Release terminal and files; safe after `end` and without it."""
        self._progress.close()
        self.folder.close()

    def _files(self) -> list[Path]:
        """The existing files of this run."""
        # A failed run may have the model of an earlier, successful end, which is not its own.
        folder = self.folder
        written = (
            *(folder.report, folder.metrics, folder.samples),
            *(folder.saved, folder.tensorboard),
        )
        model = (folder.model,) if self.outcome is Outcome.SUCCEEDED else ()
        return [path for path in (*written, *model) if path.exists()]
