"""Ctrl-C and SIGTERM: the first lets a job stop after its step, the second stops it at once."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from rlhf_runtime.controller.stop import StopRequest


def install_signal_handlers(stop: StopRequest) -> None:
    """Handle both signals; call it again after a library has replaced the handlers."""

    def handle(_number: int, frame: FrameType | None) -> None:
        again, stop.requested = stop.requested, True
        # Before the first step there is nothing to save, so the first signal ends the job.
        if again or not stop.has_state_to_save:
            if not _is_starting_process(frame):
                raise KeyboardInterrupt
            return  # `StopRequest.raise_if_requested` raises it in a moment
        # print is not reentrant: the signal may have interrupted one.
        os.write(2, b"stopping after this step, with its state saved; again to stop at once\n")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    sys.unraisablehook = _report_dropped_error


def _is_starting_process(frame: FrameType | None) -> bool:
    """True if the interrupted code starts a subprocess."""
    # Libraries run callbacks at a fork. Python drops an error that is raised in one of them, and
    # the unfinished callback makes the next ones fail.
    while frame is not None:
        if frame.f_code.co_name == "_execute_child" and frame.f_globals["__name__"] == "subprocess":
            return True
        frame = frame.f_back
    return False


def _report_dropped_error(unraisable: sys.UnraisableHookArgs) -> None:
    """Report errors that Python drops, except for interruptions."""
    # `raise_if_requested` raises interruptions again.
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def defer_signals() -> StopRequest:
    """Record signals in the returned request until handlers are installed again."""
    deferred = StopRequest()

    def record(_number: int, _frame: FrameType | None) -> None:
        deferred.requested = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, record)
    return deferred
