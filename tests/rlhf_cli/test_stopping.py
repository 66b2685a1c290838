"""The first signal is never lost."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from rlhf_cli.stopping import install_signal_handlers
from rlhf_runtime.controller.stop import StopRequest

class Broken:
    def __del__(self):
        raise RuntimeError("told as ever")

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass  # the handler runs in here, and Python drops what it raises

stop = StopRequest()
install_signal_handlers(stop)
Interrupted()
Broken()
print("went on")
try:
    stop.raise_if_requested()
except KeyboardInterrupt:
    print("obeyed")
"""


def outcome(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )


def test_a_signal_whose_error_python_drops_is_obeyed_at_the_next_occasion() -> None:
    done = outcome(PROGRAM)
    assert done.stdout.split("\n")[:2] == ["went on", "obeyed"], done.stderr
    assert "KeyboardInterrupt" not in done.stderr and "told as ever" in done.stderr


FORKING = """
import os, signal, subprocess
from rlhf_cli.stopping import install_signal_handlers
from rlhf_runtime.controller.stop import StopRequest

def before():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass  # the handler runs in here
    print("prepared", flush=True)

stop = StopRequest()
install_signal_handlers(stop)
os.register_at_fork(before=before)
subprocess.run(["true"], preexec_fn=lambda: None, check=True)
try:
    stop.raise_if_requested()
except KeyboardInterrupt:
    print("obeyed")
"""


def test_a_signal_leaves_what_libraries_do_at_a_fork_whole() -> None:
    done = outcome(FORKING)
    assert (done.stdout, done.stderr) == ("prepared\nobeyed\n", "")
