"""Ctrl-C and SIGTERM: the first asks a job that trains to stop, the second makes it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from rlhf_runtime.controller.stop import StopRequest


def take_over_signals(stop: StopRequest) -> None:
    """Handle both signals from now on; again after a library has taken them."""

    def handle(_number: int, frame: FrameType | None) -> None:
        again, stop.requested = stop.requested, True
        if again or not stop.has_state_to_save:
            if not _starts_a_process(frame):
                raise KeyboardInterrupt
            return  # `StopRequest.raise_if_requested` raises it in a moment
        os.write(2, b"stopping after this step, with its state saved; again to stop at once\n")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    sys.unraisablehook = _tell_what_is_dropped


def _starts_a_process(frame: FrameType | None) -> bool:
    """Whether a process is being started: libraries have callbacks at a fork. Python drops an error
    that is raised in one of them, and what it leaves half done makes the next ones fail."""
    while frame is not None:
        if frame.f_code.co_name == "_execute_child" and frame.f_globals["__name__"] == "subprocess":
            return True
        frame = frame.f_back
    return False


def _tell_what_is_dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """As Python does, but for interruptions: `raise_if_requested` raises those again."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def hold_signals() -> StopRequest:
    """Only note signals from now on, until they are taken over again; returns where."""
    held = StopRequest()

    def note(_number: int, _frame: FrameType | None) -> None:
        held.requested = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return held
