"""The fork server of conversations: imports the user's modules once, then forks a process for each
conversation.

It has one thread of its own and imports neither torch nor transformers. It ends with its owner. All
that a conversation's process has started ends with it, also what has left its process group: the
server is the parent of all orphans below it. Linux only; standard library only.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rlhf_runtime.end_with_parent import end_with
from rlhf_runtime.environments import frames
from rlhf_runtime.environments.child_processes import child_processes, exit_text, kill_children
from rlhf_runtime.environments.environment_class import (
    CannotUse,
    Environment,
    load_environments,
)
from rlhf_runtime.environments.episode_main import ConversationProcess
from rlhf_runtime.environments.isolation import (
    adopt_orphans,
    confine,
    kill_group,
    leave_network,
    reset_signals,
)
from rlhf_runtime.environments.settings import EnvironmentDescription, EnvironmentSettings

# Libraries that make forks slow and large.
HEAVY_LIBRARIES = ("tensorflow", "torch", "transformers")


class OwnerEnded(BaseException):
    """The owner of this server has ended."""


@dataclass(frozen=True)
class Loaded:
    """Contents of the server that its forks use."""

    settings: EnvironmentSettings
    environments: Mapping[str, Environment]
    folder: Path
    """Parent of the conversations' working folders."""


def main(descriptor: int, owner_pid: int) -> None:
    """Serve the requests of a connection until it closes; ends the process.

    Args:
        descriptor: of the connection.
        owner_pid: the process that started this one; this process ends with it.
    """
    try:
        _serve(descriptor, owner_pid)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # Threads that the user's modules have started must not delay the end.
    os._exit(0)


def _serve(descriptor: int, owner_pid: int) -> None:
    # Before anything of the user's runs: an owner that was killed cannot end this process.
    end_with(owner_pid)
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as control, suppress(EOFError, ConnectionError):
        loaded = _load(control, owner_pid)
        if loaded is None:
            return
        # From here on only this module's code runs, so it can end its children before itself.
        signal.signal(signal.SIGTERM, _raise_owner_ended)
        end_with(owner_pid, signal.SIGTERM)
        conversation = Server(control, loaded).serve()
        if conversation is not None:
            _run(conversation, loaded)


def _raise_owner_ended(number: int, frame: FrameType | None) -> None:
    raise OwnerEnded


def _load(control: socket.socket, owner_pid: int) -> Loaded | None:
    """Import the user's modules and report; None if they cannot be used."""
    request, _ = frames.receive(control)
    settings = EnvironmentSettings.from_json(request["settings"])
    notices = []
    if not settings.allow_network:
        # Before the import: it may start threads, and open connections that all forks would share.
        if problem := leave_network():
            notices.append(
                "tools may reach the network: this node lets no process leave it "
                f"({problem}); forbid it by a NetworkPolicy, or set rollout.environment."
                "allowsNetwork"
            )
        # The kernel forgets the owner when rights change.
        end_with(owner_pid)
    try:
        environments = load_environments(settings)
    except CannotUse as error:
        about = {"entrypoint": error.entrypoint, "is_import": error.is_import}
        frames.send(control, {"unusable": str(error), **about})
        return None
    if heavy := [name for name in HEAVY_LIBRARIES if name in sys.modules]:
        notices.append(
            f"the environment's module imports {', '.join(heavy)}: each conversation's process "
            "starts slower and takes more memory; import it only where it is needed"
        )
    if len(os.listdir("/proc/self/task")) > 1:
        notices.append(
            "the environment's module starts threads during its import: forks of a process with "
            "threads may hang; start them in the constructor"
        )
    facts = {name: environment.facts for name, environment in environments.items()}
    description = EnvironmentDescription(facts, tuple(notices))
    frames.send(control, {"ready": description.to_json()})
    return Loaded(settings, environments, Path(request["folder"]))


@dataclass(frozen=True)
class ForkedEpisode:
    """The conversation that a forked process serves, and its ends of pipes."""

    number: int
    connection: int
    """File descriptor."""
    output: int
    """File descriptor."""


class Server:
    """Forks processes, and reports and cleans up when they end."""

    def __init__(self, control: socket.socket, loaded: Loaded) -> None:
        self._control = control
        self._loaded = loaded
        self._numbers: dict[int, int] = {}
        """Numbers of living conversations by process id."""
        # The user's modules may have started programs during their import.
        self._own_children = set(child_processes())
        self._wakeups, self._wakeup_sender = os.pipe()

    def serve(self) -> ForkedEpisode | None:
        """Serve until the owner closes the connection. Returns a conversation in a fork."""
        adopt_orphans()
        os.set_blocking(self._wakeup_sender, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup_sender)
        # Forks share the pages of objects that the collector does not touch.
        gc.collect()
        gc.freeze()
        server, requests = os.getpid(), self._control.fileno()
        try:
            while True:
                readable, _, _ = select.select([self._wakeups, requests], [], [])
                if self._wakeups in readable:
                    os.read(self._wakeups, 1 << 12)
                    self._reap()
                if requests in readable:
                    conversation = self._handle()
                    if conversation is not None:
                        return conversation
        except (EOFError, ConnectionError, OwnerEnded):
            return None
        finally:
            if os.getpid() == server:
                self._end_all()

    def _handle(self) -> ForkedEpisode | None:
        request, descriptors = frames.receive(self._control, max_descriptors=2)
        if "kill" in request:
            for process, number in self._numbers.items():
                if number == request["kill"]:
                    kill_group(process)
            return None
        conversation = ForkedEpisode(request["fork"], *descriptors)
        return self._fork(conversation)

    def _fork(self, conversation: ForkedEpisode) -> ForkedEpisode | None:
        server = os.getpid()
        try:
            process = os.fork()
        except OSError as error:
            frames.send(self._control, {"number": conversation.number, "why": f"no fork: {error}"})
            process = -1
        if process == 0:
            try:
                self._leave_server(server)
            except BaseException:
                os._exit(1)  # it must not continue as a second server
            return conversation
        os.close(conversation.connection)
        os.close(conversation.output)
        if process > 0:
            self._numbers[process] = conversation.number
            frames.send(self._control, {"number": conversation.number, "process": process})
        return None

    def _leave_server(self, server: int) -> None:
        """Drop everything of the server except its modules, in a forked process."""
        reset_signals()
        end_with(server)
        # Leads a group, so that the programs that it starts are killed with it.
        os.setsid()
        adopt_orphans()
        self._control.close()
        os.close(self._wakeups)
        os.close(self._wakeup_sender)

    def _reap(self) -> None:
        """Collect processes that have ended, and kill what they left behind."""
        for process in _ended():
            if process in self._numbers:
                # Before it is collected: until then its id cannot belong to another group.
                kill_group(process)
            _, status = os.waitpid(process, 0)
            number = self._numbers.pop(process, None)
            if number is not None:
                why = exit_text(os.waitstatus_to_exitcode(status))
                frames.send(self._control, {"number": number, "why": why})
        self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill children that nobody has forked here: parents that ended have left them."""
        # Living conversations adopt their own orphans, so these are of ended ones.
        for process in set(child_processes()) - self._numbers.keys() - self._own_children:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _end_all(self) -> None:
        """Kill all conversations and remove their folders."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in list(self._numbers):
            kill_group(process)
        self._numbers.clear()
        kill_children()
        shutil.rmtree(self._loaded.folder, ignore_errors=True)


def _run(conversation: ForkedEpisode, loaded: Loaded) -> None:
    """Serve a conversation; ends the process."""
    code = 1
    try:
        os.dup2(conversation.output, 1)
        os.dup2(conversation.output, 2)
        os.close(conversation.output)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        settings = loaded.settings
        folder = loaded.folder / str(conversation.number)
        confine(folder, settings.memory_bytes, keep_home="HOME" in settings.variables)
        with socket.socket(fileno=conversation.connection) as connection:
            ConversationProcess(connection, loaded.environments, settings).serve()
    except EOFError:
        code = 0  # the owner has closed the connection
    except BaseException:
        # Its streams may be closed, too.
        with suppress(OSError, ValueError):
            traceback.print_exc()
    finally:
        # Without clean-up: threads and handlers of the user's must not delay the end.
        os._exit(code)


def _ended() -> Iterator[int]:
    """Yield children that have ended and are to be collected."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        yield ended.si_pid
