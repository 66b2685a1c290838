"""Servers of tools: programs and addresses, and what happens when they fail."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_api.errors import RlhfError
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.errors import InvalidEnvironment, ToolsChanged
from rlhf_runtime.environments.results import Acted, FailureKind
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_servers.settings import HeaderSettings, ServerSettings
from rlhf_runtime.environments.tool_servers.source import ServerTools
from rlhf_runtime.journal.errors import JournalMismatch

from ...free_port import free_port
from ...waiting import wait_until
from .conftest import Attempts, key_of, settings_of
from .own_tool_servers import write_servers

TOKEN = HeaderSettings("Authorization", "TOKEN", "Bearer ")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the modules of servers, where they write notes."""
    write_servers(tmp_path)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("TOKEN", "secret")
    return tmp_path


def program(folder: Path, *words: str, name: str = "box", **settings: Any) -> ServerSettings:
    """The settings of a server that is a module of the folder."""
    command = ("python", "-m", *(words or ("plain_server",)))
    more = {"variables": ("FOLDER",), "python_path": (str(folder),), "call_seconds": 30.0}
    return ServerSettings(name, command, **{**more, **settings})


def tools_of(settings: ServerSettings, start_seconds: float = 30.0) -> ServerTools:
    return ServerTools(settings, start_seconds, pause_seconds=0.0)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().splitlines()


async def turns_of(episodes: Episodes, *turns: Sequence[ToolCall], row: int = 0) -> list[Acted]:
    """Play a conversation and return its turns."""
    await episodes.begin(key_of(row), {})
    acted = [await episodes.act(key_of(row), number, calls) for number, calls in enumerate(turns)]
    await episodes.end(key_of(row), "NoCalls")
    return acted


def run(
    sources: Sequence[ServerTools],
    play: Callable[[Episodes], Awaitable[Any]],
    environment: str = "",
    module: Path | None = None,
    **settings: Any,
) -> Any:
    """Start conversations, play and close."""
    chosen = settings_of(environment, has_sources=True, **settings)
    episodes = Episodes(chosen, [str(module)] if module else (), sources=sources)

    async def main() -> Any:
        try:
            await episodes.start()
            return await play(episodes)
        finally:
            await episodes.close()

    return asyncio.run(main())


@pytest.fixture(scope="module", params=["new", "old"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a server that runs; an old one has sessions."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    write_servers(folder)
    process = start_address(folder, port, request.param)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def start_address(folder: Path, port: int, kind: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "package_server", str(port), kind]
    process = subprocess.Popen(words, cwd=folder, env={**os.environ, "FOLDER": str(folder)})
    wait_until(lambda: is_open(port), 30, "the server's port")
    return process


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


CALLS = [
    *(call("shout", text="a"), call("refuse"), call("table"), call("draw")),
    *(call("meet"), call("meet"), call("variables")),
]


def check_answers(sources: Sequence[ServerTools]) -> Acted:
    """Check the answers of the package's server, and that calls run at the same time."""
    (acted,) = run(sources, lambda episodes: turns_of(episodes, CALLS))
    assert acted.failure is None
    loud, refused, table, drawing, *met, _ = acted.answers
    assert loud == "A" and met == ["met", "met"]
    assert refused.startswith("error: ") and "not now" in refused and acted.wrong == (1,)
    assert table.replace(" ", "").replace("\n", "") == '{"a":1}'
    assert drawing == "a dot\n[image]"
    return acted


def test_tools_of_a_program_are_called_and_it_gets_few_variables_and_a_folder(
    folder: Path,
) -> None:
    source = tools_of(program(folder, "package_server"))
    names = check_answers([source]).answers[-1].split()
    assert "FOLDER" in names and "TOKEN" not in names and names[-1] == "[]"
    assert list(source.schemas) == sorted(source.schemas)
    content = source.schemas["shout"]["function"]
    assert content["description"] == "Make a text loud."
    assert content["parameters"]["properties"]["text"]["type"] == "string"


def test_tools_of_an_address_are_called_and_its_token_is_shown_to_nobody(address: str) -> None:
    settings = ServerSettings("far", url=address, header=TOKEN, call_seconds=30.0)
    refused = check_answers([tools_of(settings)]).answers[1]
    assert refused.endswith("not now, ***")


def test_only_chosen_tools_can_be_called(folder: Path) -> None:
    source = tools_of(program(folder, tools=("shout",)))

    async def play(episodes: Episodes) -> Any:
        return [tool["function"]["name"] for tool in episodes.description.tool_schemas("")]

    assert run([source], play) == ["shout"]


def test_a_call_that_takes_too_long_is_cancelled_at_the_server(folder: Path) -> None:
    source = tools_of(program(folder))

    async def play(episodes: Episodes) -> tuple[Acted, Acted]:
        (late,) = await turns_of(episodes, [call("act", what="hang")])
        (again,) = await turns_of(episodes, [call("shout")], row=1)
        return late, again

    late, again = run([source], play, call_seconds=1.0)
    assert late.failure is not None and late.failure.kind is FailureKind.TOOL_DEADLINE
    assert again.answers == ("did shout",)
    assert notes(folder) == ["started", "hang", "cancelled", "shout"]


def test_a_server_that_ends_during_a_call_is_started_for_the_next_one(folder: Path) -> None:
    source = tools_of(program(folder))

    async def play(episodes: Episodes) -> list[Acted]:
        what = call("act", what="die once")
        return [(await turns_of(episodes, [what], row=row))[0] for row in range(2)]

    lost, again = run([source], play)
    assert lost.failure is not None and lost.failure.kind is FailureKind.ENVIRONMENT_FAILED
    assert "the tool act failed: the connection to the server box was lost" in lost.failure.detail
    assert "the server's program ended with exit code 3" in lost.failure.detail
    assert again.failure is None and again.answers == ("did die once",)
    assert notes(folder) == ["started", "die once", "started", "die once"]


def test_a_server_that_ended_between_calls_costs_no_sample(folder: Path) -> None:
    source = tools_of(program(folder))

    async def play(episodes: Episodes) -> list[Acted]:
        (first,) = await turns_of(episodes, [call("act", what="child")])
        server, _ = map(int, first.answers[0].split())
        os.kill(server, signal.SIGKILL)
        while source.is_connected:
            await asyncio.sleep(0.01)
        return [first, *await turns_of(episodes, [call("shout")], row=1)]

    assert [one.failure for one in run([source], play)] == [None, None]
    assert notes(folder) == ["started", "child", "started", "shout"]


def test_a_server_that_stays_away_fails_calls_with_the_reason(folder: Path) -> None:
    source = tools_of(program(folder))

    async def play(episodes: Episodes) -> list[Acted]:
        (folder / "plain_server.py").write_text("raise SystemExit('no licence')")
        what = [call("act", what="die")], [call("shout")]
        return [(await turns_of(episodes, calls, row=row))[0] for row, calls in enumerate(what)]

    *_, away = run([source], play)
    assert away.failure is not None and away.failure.kind is FailureKind.ENVIRONMENT_FAILED
    assert "the connection was lost before, and the server box does not" in away.failure.detail
    assert "no licence" in away.failure.detail


def test_a_server_that_changes_its_tools_ends_the_job(folder: Path) -> None:
    source = tools_of(program(folder))

    async def play(episodes: Episodes) -> None:
        await turns_of(episodes, [call("act", what="die")])
        (folder / "changed").touch()
        await turns_of(episodes, [call("shout")], row=1)

    with pytest.raises(ToolsChanged, match="the server box has .* another schema of the tool shou"):
        run([source], play)


def test_errors_of_the_protocol_are_answers_only_where_arguments_are_wrong(folder: Path) -> None:
    source = tools_of(program(folder))

    async def play(episodes: Episodes) -> list[Acted]:
        whats = ("misuse", "break")
        return [
            (await turns_of(episodes, [call("act", what=what)], row=row))[0]
            for row, what in enumerate(whats)
        ]

    misused, broken = run([source], play)
    assert misused.answers == ("error: no such thing",) and misused.wrong == (0,)
    assert broken.failure is not None
    assert "answered with an error: out of order (code -32603)" in broken.failure.detail


def refusal(source: ServerTools) -> RlhfError:
    with pytest.raises(InvalidEnvironment) as raised:
        run([source], turns_of)
    return raised.value


@pytest.mark.parametrize(
    ("words", "settings", "says", "field"),
    [
        (("plain_server", "slow"), {}, "got no answer within 0.5 s", "command"),
        (("plain_server", "broken"), {}, "ValueError: no licence", "command"),
        (("nowhere",), {}, "No module named nowhere", "command"),
        (("plain_server", "empty"), {}, "has no tools: got an empty list", None),
        ((), {"tools": ("shot",)}, "got shot, allowed act, shout; correct", "tools"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_with_the_reason(
    folder: Path, words: tuple[str, ...], settings: dict[str, Any], says: str, field: str | None
) -> None:
    limit = 0.5 if "slow" in words else 30.0
    error = refusal(tools_of(program(folder, *words, **settings), limit))
    assert says in str(error) and str(error).startswith("the server box ")
    section = ("spec", "rollout", "environment", "servers", "box")
    assert error.location == (section if field is None else (*section, field))


def test_a_program_that_is_not_installed_is_refused(folder: Path) -> None:
    settings = replace(program(folder), command=("no-such-program", "x"))
    assert "got no program no-such-program on this machine" in str(refusal(tools_of(settings)))


def test_an_address_without_a_server_is_refused() -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    error = refusal(tools_of(ServerSettings("far", url=url, call_seconds=1.0)))
    assert "got ConnectError" in str(error) and error.exit_code == 4
    assert error.location == ("spec", "rollout", "environment", "servers", "far", "url")


def test_an_address_that_says_nothing_is_refused_after_a_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        source = tools_of(ServerSettings("far", url=url, call_seconds=1.0), start_seconds=0.2)
        assert "got no answer within 0.2 s, allowed the list" in str(refusal(source))


def test_a_program_that_prints_among_its_messages_is_understood(folder: Path) -> None:
    source = tools_of(program(folder, "plain_server", "chatty"))
    (acted,) = run([source], lambda episodes: turns_of(episodes, [call("shout")]))
    assert acted.answers == ("did shout",)


def test_a_wrong_token_is_refused_with_the_status(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "public")
    settings = ServerSettings("far", url=address, header=TOKEN, call_seconds=30.0)
    error = refusal(tools_of(settings))
    assert "its last answer had status 401" in str(error) and "public" not in str(error)
    monkeypatch.delenv("TOKEN")
    assert "got nothing in TOKEN, allowed" in str(refusal(tools_of(settings)))


def test_a_server_that_forgets_sessions_costs_no_sample(folder: Path) -> None:
    port = free_port()
    first = start_address(folder, port, "old")
    url = f"http://127.0.0.1:{port}/mcp"
    source = tools_of(ServerSettings("far", url=url, header=TOKEN, call_seconds=30.0))

    async def play(episodes: Episodes) -> tuple[Acted, subprocess.Popen[bytes]]:
        first.kill()
        first.wait()
        second = await asyncio.to_thread(start_address, folder, port, "old")
        (acted,) = await turns_of(episodes, [call("shout", text="a")])
        return acted, second

    acted, second = run([source], play)
    second.kill()
    second.wait()
    assert acted.failure is None and acted.answers == ("A",)


def test_an_address_that_goes_away_during_a_call_loses_that_call(folder: Path) -> None:
    port = free_port()
    server = start_address(folder, port, "new")
    url = f"http://127.0.0.1:{port}/mcp"
    source = tools_of(ServerSettings("far", url=url, header=TOKEN, call_seconds=30.0))

    async def play(episodes: Episodes) -> list[Acted]:
        calls = asyncio.create_task(turns_of(episodes, [call("hang")]))
        while not (folder / "notes").exists():
            await asyncio.sleep(0.01)
        server.kill()
        server.wait()
        return [*await calls, *await turns_of(episodes, [call("shout", text="a")], row=1)]

    lost, away = run([source], play)
    assert lost.failure is not None and away.failure is not None
    assert "the connection to the server far was lost" in lost.failure.detail
    assert "the server far" in away.failure.detail and "ConnectError" in away.failure.detail


@pytest.mark.parametrize("others", [(), ("docs",)])
def test_two_tools_of_one_name_are_refused_with_both_owners(
    folder: Path, module: Path, others: tuple[str, ...]
) -> None:
    sources = [tools_of(program(folder, name=name)) for name in ("box", *others)]
    (module / "loud.py").write_text(
        'class Loud:\n    def shout(self) -> str:\n        """Shout."""\n        return ""\n'
    )
    says = (
        "got act of the server box and of the server docs"
        if others
        else ("got shout of loud:Loud and of the server box")
    )
    with pytest.raises(InvalidEnvironment, match=says):
        run(sources, turns_of, module=module, entrypoints={"": "loud:Loud"})


def test_answers_are_read_after_a_restart_and_not_asked_for_again(
    attempts: Attempts, folder: Path
) -> None:
    def attempt() -> list[Acted]:
        source = tools_of(program(folder))
        episodes = attempts.next("", [source], has_sources=True)

        async def main() -> list[Acted]:
            try:
                await episodes.start()
                return await turns_of(episodes, [call("shout")], [call("act", what="a")])
            finally:
                await episodes.close()

        return asyncio.run(main())

    first = attempt()
    assert attempt() == first and [one.answers for one in first] == [("did shout",), ("did a",)]
    assert notes(folder) == ["started", "shout", "a", "started"]
    (folder / "changed").touch()
    with pytest.raises(JournalMismatch, match="environment begin another question"):
        attempt()


OWNER = """
import asyncio, sys
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_servers.settings import ServerSettings
from rlhf_runtime.environments.tool_servers.source import ServerTools

async def main():
    command = (sys.executable, "-m", "plain_server")
    tools = ServerTools(ServerSettings(
        "box", command, variables=("FOLDER",), allow_network=sys.argv[2] == "True",
        python_path=(sys.argv[1],), call_seconds=30.0,
    ))
    await tools.start()
    print(await tools.call(None, ToolCall("act", {"what": "child"})), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("allow_network", [True, False])
def test_a_program_and_what_it_started_end_with_an_owner_that_is_killed(
    folder: Path, allow_network: bool
) -> None:
    words = [sys.executable, "-c", OWNER, str(folder), str(allow_network)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        started = list(map(int, owner.stdout.readline().split()))
        assert len(started) == 2
        owner.kill()
    wait_until(lambda: not any(map(lives, started)), 10, "the processes' end")


def lives(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
