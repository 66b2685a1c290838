"""Progress while environments are silent."""

from __future__ import annotations

from rlhf_runtime.conversations.silence_limit import SilenceLimit


def test_a_host_that_is_silent_for_too_long_is_no_progress() -> None:
    times, ticks = iter(range(100)), list[int]()
    silence = SilenceLimit(lambda: ticks.append(1), 3, lambda: float(next(times)))
    for _ in range(6):
        silence.report_wait(has_replies=False)
    assert len(ticks) == 2, "at 1 and 2 seconds"
    silence.report_wait(has_replies=True)
    silence.restart()
    silence.report_wait(has_replies=False)
    assert len(ticks) == 4
