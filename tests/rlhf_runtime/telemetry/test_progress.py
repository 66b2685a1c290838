"""Progress tells the same story to people and to logs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_runtime.telemetry.live_progress import LiveProgress
from rlhf_runtime.telemetry.plain_progress import PlainProgress
from rlhf_runtime.telemetry.progress import Progress, make_progress
from rlhf_runtime.telemetry.progress_text import Pace, sparkline
from rlhf_runtime.telemetry.records import EvaluationRecord, WarmStartRecord
from rlhf_runtime.telemetry.summary import summarize

from .conftest import MakeRun, MakeStep, a_run


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fields(line: str) -> dict[str, str]:
    kind, *pairs = line.split()
    return {"": kind} | dict(pair.split("=", 1) for pair in pairs)


def tell(progress: Progress, make_run: MakeRun, make_step: MakeStep, path: Path) -> None:
    progress.begin(a_run(path, 3))
    progress.startup("ray", 2.125)
    progress.warm_start(WarmStartRecord(1, {"warm_start/loss": 2.0}))
    progress.evaluation(EvaluationRecord(0, {"evaluation/exact_match": 0.25}))
    for step in (1, 2, 3):
        progress.step(make_step(step))
    progress.notice("disk\nis   full")
    progress.evaluation(EvaluationRecord(3, {"evaluation/exact_match": 0.5}))
    progress.finish(summarize(make_run(3).read()), [path / "report.html"])
    progress.close()


def test_plain_lines_have_stable_fields(
    make_run: MakeRun, make_step: MakeStep, tmp_path: Path
) -> None:
    stream = io.StringIO()
    tell(PlainProgress(stream, Clock(), 0.0), make_run, make_step, tmp_path)
    lines = stream.getvalue().splitlines()
    kinds = [line.split()[0] for line in lines]
    assert kinds == [
        "run", "startup", "warm_start", "evaluation", "train", "train", "train", "notice",
        "evaluation", "finished", "phase", "phase", "phase", "wrote",
    ]  # fmt: skip
    assert fields(lines[0])["job"] == "sort-grpo"
    assert fields(lines[0])["devices"] == "2_CPU_ranks"
    assert fields(lines[1]) == {"": "startup", "phase": "ray", "seconds": "2.12"}
    assert fields(lines[5]) == {
        "": "train",
        "step": "2/3",
        "reward": "0.02",
        "kl": "0.02",
        "seconds": "0.500",
        "eta_seconds": "0",
        "generate": "0.250",
        "score": "0.050",
        "train": "0.150",
    }
    assert lines[7] == "notice disk is full"
    assert fields(lines[8]) == {"": "evaluation", "step": "3", "exact_match": "0.5"}
    finished = fields(lines[9])
    assert (finished["outcome"], finished["steps"]) == ("succeeded", "3/3")
    assert (finished["exact_match_first"], finished["exact_match_last"]) == ("0.25", "0.875")
    assert finished["training_seconds"] == "1.5"


WITHOUT_REWARD = {"judge/loss": 0.5, "judge/accuracy": 0.75, "judge/learning_rate": 0.001}


def test_a_step_without_a_reward_shows_its_loss(make_step: MakeStep) -> None:
    stream, screen = io.StringIO(), io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    live = LiveProgress(screen, console)
    for progress in (PlainProgress(stream, Clock(), 0.0), live):
        progress.begin(a_run(Path("out"), 1))
        progress.step(make_step(1, metrics=WITHOUT_REWARD))
        progress.evaluation(EvaluationRecord(1, {"evaluation/length_mean": 6.5}))
        progress.close()
    _, train, evaluation = stream.getvalue().splitlines()
    assert list(fields(train))[1:4] == ["step", "loss", "accuracy"]
    assert (fields(train)["loss"], fields(train)["accuracy"]) == ("0.5", "0.75")
    assert fields(evaluation) == {"": "evaluation", "step": "1", "length_mean": "6.5"}
    shown = screen.getvalue()
    assert "loss 0.5000   accuracy 0.750" in shown and "6.500 at step 1" in shown
    assert "nan" not in shown and "reward" not in shown


def test_plain_steps_come_once_a_second_and_at_the_end(make_step: MakeStep, tmp_path: Path) -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    progress.begin(a_run(tmp_path, 100))
    for step in range(1, 101):
        clock.now = step * 0.25
        progress.step(make_step(step))
    steps = [
        int(fields(line)["step"].split("/")[0])
        for line in stream.getvalue().splitlines()
        if line.startswith("train ")
    ]
    assert steps == [*range(1, 100, 4), 100]


def test_a_withheld_step_is_told_at_the_end(
    make_run: MakeRun, make_step: MakeStep, tmp_path: Path
) -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, Clock())
    progress.begin(a_run(tmp_path, 9))
    progress.step(make_step(1))
    progress.step(make_step(2))
    progress.finish(summarize(make_run(2).read()))
    assert "train step=2/9" in stream.getvalue()


def test_a_terminal_shows_every_line(
    make_run: MakeRun, make_step: MakeStep, tmp_path: Path
) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    progress = LiveProgress(stream, console)
    tell(progress, make_run, make_step, Path("out"))
    progress.close()
    shown = stream.getvalue()
    for text in (
        "sort-grpo   GRPO · 2 CPU ranks",
        "✓ ray 2.12 s",
        "warm start",
        " 3/3",
        "reward 0.030",
        "generate 250 ms · score 50 ms · train 150 ms",
        "exact match 0.500 at step 3   0.250 at step 0",
        "disk",
        "0.250 → 0.875",
        "out/report.html",
    ):
        assert text in shown, text


def test_closing_without_an_end_gives_the_terminal_back(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    progress = LiveProgress(stream, console)
    progress.begin(a_run(tmp_path))
    progress.close()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")


def test_the_stream_decides_who_tells() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_progress(io.StringIO()), PlainProgress)
    assert isinstance(make_progress(Terminal()), LiveProgress)


def test_remaining_time_follows_the_last_steps() -> None:
    pace = Pace(window=2)
    assert pace.remaining(5) is None
    for seconds in (100.0, 1.0, 3.0):
        pace.add(seconds)
    assert pace.remaining(5) == pytest.approx(10.0)


def test_sparklines_rise_with_their_values() -> None:
    assert sparkline([0.0, 1.0], 10) == "▁█"
    assert sparkline([float(n) for n in range(80)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0, float("nan")], 8) == "▁▁"
    assert sparkline([], 8) == ""


@pytest.mark.parametrize(("seconds", "when"), [(0.0, "at once"), (7.5, "in 7.5 s")])
def test_a_restart_is_told_with_its_delay_and_reason(seconds: float, when: str) -> None:
    stream = io.StringIO()
    PlainProgress(stream).restarting(2, seconds, "WorkerLost", "rank 1 died")
    assert stream.getvalue() == f"notice restart 2 {when}, after WorkerLost: rank 1 died\n"
