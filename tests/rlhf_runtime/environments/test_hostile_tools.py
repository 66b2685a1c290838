"""Tools that hang, die, print, fork and lie cost their sample at most."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.errors import EnvironmentsLost
from rlhf_runtime.environments.output_log import MAX_LINES_PER_MINUTE
from rlhf_runtime.environments.results import Acted, EpisodeKey, FailureKind
from rlhf_runtime.environments.tool_call import ToolCall

from ...waiting import wait_until
from .conftest import LIMITS, key_of, settings_of
from .own_environments import write_module

LIMIT = 1000
MEMORY = 1 << 28
SECRET = "RLHF_TEST_API_KEY"

Act = Callable[..., Acted]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def episodes(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Episodes]:
    """Conversations with hostile tools; one server for all tests."""
    folder = tmp_path_factory.mktemp("hostile")
    write_module(folder)
    limits = {"call_seconds": 30.0, "answer_characters": LIMIT, "memory_bytes": MEMORY}
    os.environ[SECRET] = "secret"
    started = Episodes(settings_of("Hostile", **limits), [str(folder)])
    try:
        runner.run(started.start())
    finally:
        del os.environ[SECRET]
    yield started
    runner.run(started.close())


@pytest.fixture
def act(runner: asyncio.Runner, episodes: Episodes) -> Iterator[Act]:
    """Makes one call in a conversation beside another one, which goes on as if nothing was."""
    neighbour, key = key_of(1), key_of(0)
    runner.run(episodes.begin(neighbour, {}))

    def make(name: str, **arguments: Any) -> Acted:
        return runner.run(_act(episodes, key, ToolCall(name, arguments)))

    yield make
    good = runner.run(episodes.act(neighbour, 1, [ToolCall("add", {"a": 1, "b": 2})]))
    assert good == Acted(("3",))
    runner.run(episodes.end(neighbour, "NoCalls"))


async def _act(episodes: Episodes, key: EpisodeKey, call: ToolCall) -> Acted:
    await episodes.begin(key, {})
    acted = await episodes.act(key, 1, [call])
    ended = await episodes.end(key, "NoCalls")
    assert ended.failure == acted.failure
    return acted


def test_a_tool_that_hangs_is_a_failure_of_its_sample(
    make_episodes: Callable[..., Episodes],
) -> None:
    async def play() -> Acted:
        episodes = make_episodes("Hostile", call_seconds=0.2)
        await episodes.start()
        acted = await _act(episodes, key_of(), ToolCall("hang", {}))
        await episodes.close()
        return acted

    failure = asyncio.run(play()).failure
    assert failure is not None and failure.kind is FailureKind.TOOL_DEADLINE
    assert failure.detail == "the call hang({}) took longer than callSeconds = 0.2"


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ("die", "ended twice in one action: with exit code 7; it last printed:\nabout to die"),
        ("crash", "with SIGSEGV"),
        ("close_descriptors", "with exit code 1"),
    ],
)
def test_a_tool_that_ends_the_process_is_a_failure_of_its_sample(
    act: Act, tool: str, problem: str
) -> None:
    failure = act(tool).failure
    assert failure is not None and failure.kind is FailureKind.ENVIRONMENT_FAILED
    assert problem in failure.detail


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("leave", "error: SystemExit: 3"),
        ("raise_it", "error: ValueError: not so"),
        (
            "octets",
            "error: the tool returned a value of type bytes, allowed a text or a JSON value",
        ),
    ],
)
def test_an_error_is_shown_to_the_model_and_counted(act: Act, tool: str, answer: str) -> None:
    assert act(tool) == Acted((answer,), wrong=(0,))


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("surrogates", "a?b"),
        ("nothing", "null"),
        ("table", '{"a": [1, 2.5, null]}'),
        ("read_input", "''"),
        ("fork_on", "parent"),
        ("flood", "done"),
    ],
)
def test_odd_tools_have_their_answer(act: Act, tool: str, answer: str) -> None:
    assert act(tool) == Acted((answer,))


def test_a_large_answer_is_cut_in_the_middle(act: Act) -> None:
    (answer,) = act("large").answers
    assert len(answer) <= LIMIT and answer.startswith("abb") and answer.endswith("bbc")
    assert "characters left out]" in answer


def test_memory_has_a_limit(act: Act) -> None:
    assert act("allocate", size=1 << 20).answers == (str(1 << 20),)
    assert act("allocate", size=2 * MEMORY).answers == ("error: MemoryError",)


def test_output_is_logged_up_to_a_limit(
    make_episodes: Callable[..., Episodes], caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        episodes = make_episodes("Hostile")
        await episodes.start()
        for tool in ("die", "flood", "flood"):
            await _act(episodes, key_of(), ToolCall(tool, {}))
        await episodes.close()

    with caplog.at_level(logging.INFO, "rlhf_runtime.environments"):
        asyncio.run(play())
    assert any(record.getMessage().endswith(": about to die") for record in caplog.records)
    assert len(caplog.records) == MAX_LINES_PER_MINUTE + 1


@pytest.mark.parametrize("tool", ["leave_programs", "leave_programs_and_die"])
def test_programs_that_a_tool_starts_end_with_it(act: Act, tmp_path: Path, tool: str) -> None:
    act(tool, path=str(tmp_path / "pids"))
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) in (2, 4)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), 10, "the programs' end")


def test_keys_do_not_reach_tools(act: Act) -> None:
    variables = act("variables").answers[0]
    assert SECRET not in variables and "PATH" in variables


def test_heavy_libraries_do_not_reach_tools(act: Act) -> None:
    libraries = act("libraries").answers[0]
    heavy = {"torch", "transformers", "numpy", "pydantic", "ray", "yaml"}
    assert '"my_environments"' in libraries or "left out" in libraries
    assert not any(f'"{name}"' in libraries for name in heavy)


def test_a_working_folder_is_removed_with_its_conversation(act: Act) -> None:
    (path,) = act("write").answers
    assert path.startswith("/") and not Path(path).parent.exists()
    assert Path(path).parent.parent.exists(), "the server's own folder is still there"


@pytest.mark.parametrize(
    "text",
    [
        "x" * 50,
        "\x00\x00\x00\x02[]",
        '\x00\x00\x00\x0e{"answered": 7}',
        "\x00\x01\x86\xa0" + "[" * 100_000,
    ],
)
def test_a_forged_message_is_a_failure_of_its_sample(act: Act, text: str) -> None:
    failure = act("forge", text=text).failure
    assert failure is not None and failure.kind is not FailureKind.EPISODE_DEADLINE


def test_a_server_that_dies_is_replaced_and_conversations_go_on(
    make_episodes: Callable[..., Episodes],
) -> None:
    async def play() -> list[Acted]:
        episodes, keys = make_episodes("Hostile"), [key_of(number) for number in range(3)]
        await episodes.start()
        for key in keys:
            await episodes.begin(key, {})
        (number,) = (await episodes.act(keys[0], 1, [ToolCall("process", {})])).answers
        process = psutil.Process(int(number))
        os.kill(process.ppid(), signal.SIGKILL)
        wait_until(lambda: has_ended(process), 10, "the kernel ends it with its server")
        call = ToolCall("add", {"a": 1, "b": 1})
        acted = await asyncio.gather(*(episodes.act(key, 2, [call]) for key in keys))
        await episodes.close()
        return list(acted)

    first, *others = asyncio.run(play())
    # The number of a process is another one in the next process.
    assert first.failure is not None and "JournalMismatch" in first.failure.detail
    assert others == [Acted(("2",)), Acted(("2",))]


def test_a_replaced_server_ends_calls_whose_connection_stays_open(
    make_episodes: Callable[..., Episodes], tmp_path: Path
) -> None:
    path = tmp_path / "server"

    async def play() -> Acted:
        episodes = make_episodes("Hostile")
        await episodes.start()
        await episodes.begin(key_of(), {})
        call = ToolCall("keep_connection", {"path": str(path)})
        acting = asyncio.create_task(episodes.act(key_of(), 1, [call]))
        await asyncio.to_thread(wait_until, lambda: is_written(path), 10, "the call hangs")
        server = psutil.Process(int(path.read_text()))
        server.kill()
        await asyncio.to_thread(wait_until, lambda: has_ended(server), 10, "the server's end")
        await episodes.begin(key_of(1), {})
        async with asyncio.timeout(LIMITS["turn_seconds"] / 2):
            acted = await acting
        await episodes.close()
        return acted

    try:
        assert asyncio.run(play()) == Acted(("again",))
    finally:
        path.unlink()


def test_a_server_that_cannot_start_again_ends_the_job(
    make_episodes: Callable[..., Episodes], module: Path
) -> None:
    async def play() -> None:
        episodes = make_episodes("Hostile")
        await episodes.start()
        await episodes.begin(key_of(), {})
        (number,) = (await episodes.act(key_of(), 1, [ToolCall("process", {})])).answers
        server = psutil.Process(psutil.Process(int(number)).ppid())
        (module / "my_environments.py").unlink()
        server.kill()
        wait_until(lambda: has_ended(server), 10, "the server's end")
        try:
            await episodes.begin(key_of(1), {})
        finally:
            await episodes.close()

    with pytest.raises(EnvironmentsLost, match="cannot go on: got .*no such module"):
        asyncio.run(play())


def is_written(path: Path) -> bool:
    """True if the file has a text."""
    return path.exists() and path.stat().st_size > 0


def has_ended(process: psutil.Process) -> bool:
    """True if it is gone, or waits for whoever adopts orphans here."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


OWNER = """
import asyncio, os, sys
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.tool_call import ToolCall
from tests.rlhf_runtime.environments.conftest import key_of, settings_of

async def main():
    episodes = Episodes(settings_of("Hostile"), [sys.argv[1]])
    await episodes.start()
    await episodes.begin(key_of(), {})
    path = sys.argv[1] + "/pids"
    calls = [("leave_programs", {"path": path}), ("write", {}), ("process", {})]
    acted = await episodes.act(key_of(), 1, [ToolCall(*call) for call in calls])
    print(*acted.answers[1:], flush=True)
    await episodes.act(key_of(), 2, [ToolCall("hang", {})])

asyncio.run(main())
"""


def test_nothing_is_left_of_an_owner_that_is_killed(module: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(module)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        file, number = owner.stdout.readline().split()
        server = psutil.Process(int(number)).parent()
        pids = map(int, [number, *(module / "pids").read_text().split()])
        processes = [psutil.Process(pid) for pid in pids]
        owner.kill()
    assert server is not None and len(processes) == 3
    wait_until(lambda: all(map(has_ended, [server, *processes])), 10, "the end of all")
    assert not Path(file).parent.parent.exists()
