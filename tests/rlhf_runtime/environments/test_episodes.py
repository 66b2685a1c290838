"""Conversations in processes of their own."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.environments.episodes import Episodes, describe_environment
from rlhf_runtime.environments.errors import EnvironmentsLost, InvalidEnvironment
from rlhf_runtime.environments.results import Acted, Begun, Ended, FailureKind
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

from .conftest import LIMITS, Remote, key_of, settings_of

Make = Callable[..., Episodes]
Call = ToolCall | MalformedCall


def run(episodes: Episodes, play: Callable[[Episodes], Awaitable[Any]]) -> Any:
    """Start the conversations' server, play, and close it."""

    async def main() -> Any:
        try:
            await episodes.start()
            return await play(episodes)
        finally:
            await episodes.close()

    return asyncio.run(main())


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


async def conversation(
    episodes: Episodes, row: Mapping[str, Any], *turns: Sequence[Call], number: int = 0
) -> tuple[Begun, list[Acted], Ended]:
    """Play one conversation."""
    key = key_of(number)
    begun = await episodes.begin(key, row)
    acted = [await episodes.act(key, turn, calls) for turn, calls in enumerate(turns, 1)]
    return begun, acted, await episodes.end(key, "NoCalls")


def play(
    episodes: Episodes, row: Mapping[str, Any], *turns: Sequence[Call]
) -> tuple[Begun, list[Acted], Ended]:
    result = run(episodes, lambda started: conversation(started, row, *turns))
    assert isinstance(result, tuple)
    return result


def test_a_counter_of_trl_runs_unchanged(make_episodes: Make) -> None:
    turns = [call("increment", a=2), call("increment", a=3)], [call("increment", a=1)]
    begun, acted, ended = play(make_episodes("IncrementEnv"), {"prompt": "Count."}, *turns)
    assert begun == Begun(None) and ended == Ended(None)
    assert [one.answers for one in acted] == [("2", "5"), ("6",)]


def test_a_word_game_of_trl_runs_unchanged(make_episodes: Make) -> None:
    turns = [[call("guess", guess=f"[{word}]")] for word in ("stale", "slate", "crane")]
    begun, acted, ended = play(make_episodes("WordleEnv"), {"number": 1, "prompt": "Play."}, *turns)
    assert begun.observation == "Guess a word of five letters."
    assert [one.answers[0] for one in acted] == ["GYGYG", "GGGGG", "error: ValueError: Game over."]
    assert [len(one.wrong) for one in acted] == [0, 0, 1]
    assert ended == Ended(1.0)


def test_a_calculator_of_trl_runs_unchanged(make_episodes: Make) -> None:
    turn = [call("calculate", operation="product", numbers=[3, 4.5])]
    begun, acted, ended = play(make_episodes("CalculatorEnv"), {"answer": 13.5}, turn)
    assert (begun, acted[0].answers, ended) == (Begun(None), ("13.5",), Ended(1.0))


def test_functions_without_state_need_no_class(make_episodes: Make) -> None:
    episodes = make_episodes("", tools=("my_environments:shout",))
    begun, acted, ended = play(episodes, {}, [call("shout", text="a"), call("whisper")])
    assert acted[0].answers == ("A", "error: there is no tool whisper; allowed: shout")
    assert (begun, ended) == (Begun(None), Ended(None))


def test_a_row_chooses_its_environment(make_episodes: Make) -> None:
    names = {name: f"my_environments:{name}" for name in ("IncrementEnv", "WordleEnv")}
    episodes = make_episodes("", entrypoints=names, tools=("my_environments:shout",))

    async def both(started: Episodes) -> list[Any]:
        rows = [{"environment": name} for name in ("IncrementEnv", "WordleEnv", "Chess")]
        calls = [[call("increment", a=1), call("shout", text="a")]]
        return [await conversation(started, row, *calls) for row in rows]

    first, second, third = run(episodes, both)
    assert first[1][0].answers == ("1", "A")
    assert second[1][0].answers[0] == "error: there is no tool increment; allowed: guess, shout"
    assert third[0].failure == third[1][0].failure == third[2].failure
    assert third[0].failure.kind is FailureKind.ENVIRONMENT_FAILED
    assert "got 'Chess', allowed IncrementEnv, WordleEnv" in third[0].failure.detail


def test_a_malformed_call_is_answered_with_its_problem(make_episodes: Make) -> None:
    turn: list[Call] = [
        call("increment", a=1),
        MalformedCall("{", "no JSON"),
        call("increment", a=1),
    ]
    _, acted, _ = play(make_episodes("IncrementEnv"), {}, turn)
    assert acted[0].answers == ("1", "error: no JSON", "2") and acted[0].wrong == (1,)


def test_async_calls_of_a_turn_run_at_once_and_sync_ones_in_their_order(
    make_episodes: Make,
) -> None:
    meeting = [call("meet", others=3)] * 3
    turns = [[*meeting, call("now"), call("meet", others=1)], [call("raise_later")]]
    begun, acted, ended = play(make_episodes("Later"), {}, *turns)
    assert begun == Begun("later")
    assert acted[0].answers == ("3", "3", "3", "meet meet meet now", "3")
    assert acted[1].answers == ("error: KeyError: 'later'",)
    assert [one.reward for one in acted] == [5.0, 5.0]
    assert ended == Ended({"most": 3.0, "length": 5.0})


def test_no_more_calls_run_at_once_than_allowed(make_episodes: Make) -> None:
    turn = [call("meet", others=2)] * 4
    _, acted, _ = play(make_episodes("Later", parallel_calls=2), {}, turn)
    assert acted[0].answers == ("2",) * 4


def test_parameters_reach_the_class(make_episodes: Make) -> None:
    _, acted, _ = play(make_episodes("Later", parameters={"most": 7}), {}, [call("meet", others=7)])
    assert acted[0].answers == ("7",)


def test_a_place_is_free_again_when_a_conversation_ends(make_episodes: Make) -> None:
    async def three(episodes: Episodes) -> list[str]:
        order: list[str] = []
        await episodes.begin(key_of(0), {})
        waiting = asyncio.create_task(conversation(episodes, {}, number=1))
        waiting.add_done_callback(lambda _: order.append("second"))
        await episodes.act(key_of(0), 1, [call("increment", a=1)])
        order.append("first")
        await episodes.end(key_of(0), "NoCalls")
        await waiting
        # Also after a begin that was given up.
        given_up = asyncio.create_task(episodes.begin(key_of(2), {}))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        await conversation(episodes, {}, number=3)
        return order

    assert run(make_episodes("IncrementEnv", concurrency=1), three) == ["first", "second"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"observation": 3}, "reset returned 3, allowed a text or None"),
        ({"observation": "raise"}, "in _fail\n    raise ValueError"),
        ({"turn": "x"}, "turn_reward returned 'x', allowed a finite number or None"),
        ({"reward": "x"}, "reward returned 'x', allowed a finite number, a dict"),
        ({"reward": {"a": None}}, "reward returned {'a': None}"),
        ({"reward": "raise"}, "in _fail\n    raise ValueError"),
    ],
)
def test_a_wrong_value_costs_its_sample(
    make_episodes: Make, row: dict[str, Any], problem: str
) -> None:
    async def two(episodes: Episodes) -> list[Any]:
        return [await conversation(episodes, one, [call("act")]) for one in (row, {"reward": 2})]

    (_, _, bad), (_, acted, good) = run(make_episodes("Wrong"), two)
    assert bad.failure.kind is FailureKind.ENVIRONMENT_FAILED and problem in bad.failure.detail
    assert "rlhf_runtime" not in bad.failure.detail, "the traceback begins in the user's code"
    assert acted[0] == Acted(("acted",), 1.0) and good == Ended(2.0)


def test_reset_gets_the_columns_that_it_takes(make_episodes: Make) -> None:
    async def two(episodes: Episodes) -> list[Any]:
        rows: list[dict[str, Any]] = [{"question": "why?", "other": 1}, {"other": 1}]
        return [(await conversation(episodes, row))[0] for row in rows]

    good, bad = run(make_episodes("Needs"), two)
    assert good == Begun("why?")
    assert "got other, allowed rows with question" in bad.failure.detail


def test_limits_count_by_call_turn_and_episode(make_episodes: Make) -> None:
    async def later(**limits: float) -> Any:
        episodes = make_episodes("Later", **limits)
        try:
            await episodes.start()
            _, acted, ended = await conversation(
                episodes, {}, [call("meet", others=1), call("hang_later"), call("hang_later")]
            )
            assert ended.failure == acted[0].failure and acted[0].answers == ()
            return acted[0].failure
        finally:
            await episodes.close()

    slow, turn, episode = [
        asyncio.run(later(**{limit: 0.2}))
        for limit in ("call_seconds", "turn_seconds", "episode_seconds")
    ]
    assert slow.kind is turn.kind is FailureKind.TOOL_DEADLINE
    assert slow.detail == "the call hang_later({}) took longer than callSeconds = 0.2"
    assert "took longer than turnSeconds = 0.2" in turn.detail
    assert episode.kind is FailureKind.EPISODE_DEADLINE
    assert "episodeSeconds = 0.2" in episode.detail


def test_a_reward_that_hangs_has_a_limit(make_episodes: Make) -> None:
    _, _, ended = play(make_episodes("Wrong", turn_seconds=1.0), {"reward": "hang"})
    assert ended.failure is not None and ended.failure.kind is FailureKind.TOOL_DEADLINE
    assert ended.failure.detail == "reward took longer than turnSeconds = 1"


def test_the_description_names_all_tools(module: Path) -> None:
    settings = settings_of("WordleEnv", tools=("my_environments:shout",))
    description = describe_environment(settings, [str(module)])
    schemas = description.tool_schemas("")
    assert [schema["function"]["name"] for schema in schemas] == ["guess", "shout"]
    facts = description.environments[""]
    assert facts.has_reset and facts.has_reward and not facts.has_turn_reward


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            EnvironmentSettings({"": "missing_module:Game"}, **LIMITS),
            "no such module: got missing_module",
        ),
        (settings_of("WordleEnv", tools=("my_environments:guess",)), "have one name: got guess"),
        (settings_of("IncrementEnv", parameters={"a": 1}), "does not take its parameters"),
    ],
)
def test_environments_that_cannot_be_used_are_refused(
    module: Path, settings: EnvironmentSettings, problem: str
) -> None:
    with pytest.raises(InvalidEnvironment, match=problem):
        describe_environment(settings, [str(module)])
    with pytest.raises(InvalidEnvironment, match=problem):
        asyncio.run(Episodes(settings, [str(module)]).start())


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os\nprint('bye')\nos._exit(5)", "exit code 5 (?s:.*)last printed:\nbye"),
        ("import os\nos.kill(os.getpid(), 11)", "ended with SIGSEGV"),
    ],
)
def test_a_module_that_ends_the_process_is_refused(tmp_path: Path, code: str, problem: str) -> None:
    (tmp_path / "ending.py").write_text(code)
    with pytest.raises(InvalidEnvironment, match=problem):
        describe_environment(EnvironmentSettings({"": "ending:Game"}, **LIMITS), [str(tmp_path)])


def test_a_module_that_imports_torch_is_reported(module: Path) -> None:
    (module / "torch.py").touch()
    (module / "heavy.py").write_text("import torch\nfrom my_environments import *\n")
    settings = EnvironmentSettings({"": "heavy:WordleEnv"}, **LIMITS)
    (notice,) = describe_environment(settings, [str(module)]).notices
    assert "imports torch" in notice


def test_a_module_that_starts_threads_is_reported(module: Path) -> None:
    start = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    (module / "threaded.py").write_text(f"{start}from my_environments import *\n")
    settings = EnvironmentSettings({"": "threaded:WordleEnv"}, **LIMITS)
    (notice,) = describe_environment(settings, [str(module)]).notices
    assert "starts threads" in notice


def test_another_source_of_tools_is_asked_beside_the_environment(module: Path) -> None:
    episodes = Episodes(settings_of("IncrementEnv"), [str(module)], sources=[Remote("ask")])
    turn = [call("increment", a=1), call("ask", text="a"), call("ask", text="no")]
    _, acted, _ = play(episodes, {}, turn)
    assert acted[0].answers == ("1", "asked a", "error: refused") and acted[0].wrong == (2,)


def test_another_source_has_limits_and_failures_of_its_own(module: Path) -> None:
    async def two(episodes: Episodes) -> list[Acted]:
        turns = [call("ask", text="hang")], [call("ask", text="break")]
        return [(await conversation(episodes, {}, turn))[1][0] for turn in turns]

    settings = settings_of("IncrementEnv", call_seconds=0.2)
    episodes = Episodes(settings, [str(module)], sources=[Remote("ask")])
    late, broken = run(episodes, two)
    assert late.failure.kind is FailureKind.TOOL_DEADLINE
    assert broken.failure.kind is FailureKind.ENVIRONMENT_FAILED
    assert "the tool ask failed: error: ConnectionError: gone" in broken.failure.detail


def test_a_source_may_not_share_a_name_with_a_method(module: Path) -> None:
    episodes = Episodes(settings_of("IncrementEnv"), [str(module)], sources=[Remote("increment")])
    with pytest.raises(InvalidEnvironment, match="two tools have one name: got increment"):
        asyncio.run(episodes.start())


def test_tools_reach_the_network_only_if_allowed(make_episodes: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        turn = [call("connect", port=server.getsockname()[1])]
        answers = [
            play(make_episodes("Hostile", allow_network=allowed), {}, turn)[1][0].answers[0]
            for allowed in (False, True)
        ]
    assert answers[0].startswith("error: OSError") and answers[1] == "connected"


def test_too_many_open_files_end_the_job_with_the_reason(make_episodes: Make) -> None:
    async def play_without_files(episodes: Episodes) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The number of the next file is the first that is free.
        next_file = os.dup(0)
        os.close(next_file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, limits[1]))
        try:
            with pytest.raises(EnvironmentsLost, match="got .*Too many open files"):
                await episodes.begin(key_of(), {})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await episodes.begin(key_of(1), {}), "no file is left open"

    run(make_episodes("IncrementEnv"), play_without_files)
