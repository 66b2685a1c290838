"""Conversations of attempts that follow one another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.results import Acted, Begun, Ended, FailureKind
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.journal.errors import JournalMismatch

from .conftest import Attempts, Remote, key_of, settings_of
from .own_environments import write_module

Results = list[Begun | Acted | Ended]
Turns = Sequence[Sequence[ToolCall]]


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


async def play(
    episodes: Episodes, row: Mapping[str, Any], turns: Turns, num_actions: int | None = None
) -> Results:
    """Play a conversation, or its first actions only."""
    key = key_of()
    actions: list[Callable[[], Awaitable[Begun | Acted | Ended]]] = [
        lambda: episodes.begin(key, row),
        *(lambda turn=turn: episodes.act(key, turn + 1, turns[turn]) for turn in range(len(turns))),
        lambda: episodes.end(key, "NoCalls"),
    ]
    return [await action() for action in actions[:num_actions]]


def attempt(
    episodes: Episodes,
    turns: Turns,
    num_actions: int | None = None,
    row: Mapping[str, Any] | None = None,
    completes: bool = False,
) -> tuple[Results, RecordCounts | None]:
    """Play in one attempt, which ends then without notice."""

    async def main() -> tuple[Results, RecordCounts | None]:
        try:
            await episodes.start()
            results = await play(episodes, row or {}, turns, num_actions)
            return results, await episodes.complete(key_of().call) if completes else None
        finally:
            await episodes.close()

    return asyncio.run(main())


def test_a_finished_conversation_is_only_read(attempts: Attempts) -> None:
    turns = [[call("act")], [call("act")]]
    first, _ = attempt(attempts.next("Unstable"), turns)
    second, counts = attempt(attempts.next("Unstable"), turns, completes=True)
    assert second == first, "another process would have another number"
    assert isinstance(first[1], Acted) and first[1].answers == first[2].answers  # type: ignore[union-attr]
    assert first[-1] == Ended(1.0)
    assert counts == RecordCounts(num_read=4)


def test_a_conversation_that_cannot_be_rebuilt_is_invalid(attempts: Attempts) -> None:
    turns = [[call("act")], [call("act")]]
    attempt(attempts.next("Unstable"), turns, num_actions=2)
    for _ in range(2):  # it is not kept: the next attempt tries again
        results, counts = attempt(attempts.next("Unstable"), turns, completes=True)
        assert isinstance(results[2], Acted) and results[2].failure is not None
        assert results[2].failure.kind is FailureKind.ENVIRONMENT_FAILED
        assert "JournalMismatch: the conversation was rebuilt, and call 1 of turn 1 (act)" in (
            results[2].failure.detail
        )
        assert results[3] == Ended(failure=results[2].failure)
        assert counts == RecordCounts(num_read=2, num_mismatches=1)


def test_calls_with_side_effects_are_never_repeated(attempts: Attempts, module: Path) -> None:
    turns = [[call("note", text="a"), call("draw", count=1)], [call("note", text="b")]]
    parameters = {"folder": str(module)}
    attempt(attempts.next("Drawer", parameters=parameters), turns, num_actions=2)
    results, _ = attempt(attempts.next("Drawer", parameters=parameters), turns)
    assert isinstance(results[2], Acted) and results[2].answers == ("a\nb\n",)
    assert (module / "notes").read_text() == "a\nb\n"


def test_calls_with_side_effects_are_not_repeated_within_a_turn(
    attempts: Attempts, module: Path
) -> None:
    (module / "victim").write_text("process")
    turns = [[call("note", text="a"), call("break_once"), call("note", text="b")]]
    results, _ = attempt(attempts.next("Drawer", parameters={"folder": str(module)}), turns)
    assert isinstance(results[1], Acted) and results[1].failure is None
    assert (module / "broken").exists()
    assert (module / "notes").read_text() == "a\nb\n"


def test_calls_of_other_sources_are_not_repeated(attempts: Attempts, module: Path) -> None:
    turn = [call("ask", text="a"), call("break_once")]
    (module / "victim").write_text("owner")
    sources, results = [Remote("ask"), Remote("ask")], []
    for source in sources:
        episodes = attempts.next("Drawer", [source], parameters={"folder": str(module)})
        results.append(asyncio.run(until_broken(episodes, [turn], module, None)))
    assert results[0] is None and results[1] is not None
    assert results[1][1].answers[0] == "asked a"
    assert [source.asked for source in sources] == [["a"], []]


def test_a_limit_that_fired_is_read_and_not_timed_again(attempts: Attempts, module: Path) -> None:
    (module / "victim").write_text("owner")
    limits = {"parameters": {"folder": str(module)}, "call_seconds": 0.3}
    first, _ = attempt(attempts.next("Drawer", **limits), [[call("break_once")]])
    second, counts = attempt(
        attempts.next("Drawer", **limits), [[call("break_once")]], completes=True
    )
    assert second == first
    assert isinstance(first[1], Acted) and first[1].failure is not None
    assert first[1].failure.kind is FailureKind.TOOL_DEADLINE
    assert counts == RecordCounts(num_read=2)


def test_the_death_of_a_process_is_not_kept(attempts: Attempts, module: Path) -> None:
    parameters, turns = {"folder": str(module)}, [[call("die_until", count=3)]]
    first, _ = attempt(attempts.next("Drawer", parameters=parameters), turns, completes=True)
    second, _ = attempt(attempts.next("Drawer", parameters=parameters), turns)
    assert isinstance(first[1], Acted) and first[1].failure is not None
    assert isinstance(second[1], Acted) and second[1].answers == ("lives",)


@pytest.mark.parametrize("completes", [False, True])
def test_an_exception_is_kept_only_if_its_call_is_completed(
    attempts: Attempts, completes: bool
) -> None:
    row = {"reward": "raise"}
    attempt(attempts.next("Wrong"), [], row=row, completes=completes)
    results, counts = attempt(attempts.next("Wrong"), [], row=row, completes=True)
    assert results[1].failure is not None and "my own mistake" in results[1].failure.detail
    assert counts == RecordCounts(num_read=1 + completes)


def test_damaged_lines_are_noted(attempts: Attempts, tmp_path: Path) -> None:
    turns = [[call("increment", a=1)]]
    first, _ = attempt(attempts.next("IncrementEnv"), turns)
    (file,) = (tmp_path / "journal").glob("step-*/*.jsonl")
    begin, *lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([begin.replace(b"begin", b"begun"), *lines]))
    second, counts = attempt(attempts.next("IncrementEnv"), turns, completes=True)
    assert second == first
    assert counts is not None and counts.num_read == 2
    (notice,) = counts.damage_notices
    assert notice.startswith(f"{file} has damaged lines")


def test_other_calls_than_before_are_refused_under_the_same_settings(attempts: Attempts) -> None:
    attempt(attempts.next("IncrementEnv"), [[call("increment", a=1)]])
    with pytest.raises(JournalMismatch, match="asks environment turn 1 another question"):
        attempt(attempts.next("IncrementEnv"), [[call("increment", a=2)]])
    attempts.settings = "others"
    results, counts = attempt(
        attempts.next("IncrementEnv"), [[call("increment", a=2)]], completes=True
    )
    assert isinstance(results[1], Acted) and results[1].answers == ("2",)
    assert counts == RecordCounts(num_read=1, num_different=2)


@pytest.mark.parametrize(
    ("environment", "lost", "num_read", "num_different"),
    [("Unstable", 1, 1, 1), ("Moody", 0, 0, 2)],
)
def test_what_followed_another_answer_is_not_read(
    attempts: Attempts,
    tmp_path: Path,
    environment: str,
    lost: int,
    num_read: int,
    num_different: int,
) -> None:
    turns = [[call("act")]]
    attempt(attempts.next(environment), turns)
    (file,) = (tmp_path / "journal").glob("step-*/*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for number, line in enumerate(lines) if number != lost))
    attempts.settings = "others"
    _, counts = attempt(attempts.next(environment), turns, completes=True)
    assert counts == RecordCounts(num_read, num_different)


def test_rewards_draw_the_same_numbers_after_other_calls(module: Path) -> None:
    (_, acted, ended), (_, other_acted, other_ended) = (
        attempt(Episodes(settings_of("Lucky"), [str(module)]), [[call("draw", count=count)]])[0]
        for count in (1, 2)
    )
    assert isinstance(acted, Acted) and isinstance(other_acted, Acted)
    assert acted.answers != other_acted.answers
    assert acted.reward == other_acted.reward is not None
    assert ended == other_ended


@pytest.mark.parametrize(
    ("changes", "row", "num_read"),
    [
        ({}, {}, 3),
        ({"seed": 1}, {}, 0),
        ({"parameters": {"salt": "other"}}, {}, 0),
        ({}, {"number": 1}, 0),
    ],
)
@pytest.mark.parametrize("code", ["code", "other"])
def test_only_answers_of_the_same_class_seed_and_row_are_read(
    attempts: Attempts, changes: dict[str, Any], row: dict[str, Any], num_read: int, code: str
) -> None:
    turns = [[call("draw", count=1)]]
    attempt(attempts.next("Drawer"), turns)
    attempts.settings, attempts.code = "others", code
    _, counts = attempt(attempts.next("Drawer", **changes), turns, row=row, completes=True)
    assert counts is not None
    assert counts.num_read == (num_read if code == "code" else 0)
    assert counts.num_different == 3 - counts.num_read


async def until_broken(
    episodes: Episodes, turns: Turns, folder: Path, num_actions: int | None
) -> Results | None:
    """Play until the owner is to die: after some actions, or within a call. None then."""
    await episodes.start()
    playing = asyncio.create_task(play(episodes, {}, turns, num_actions))
    was_broken = (folder / "broken").exists()
    owner_dies = (folder / "victim").exists() and (folder / "victim").read_text() == "owner"
    try:
        while not playing.done():
            await asyncio.wait([playing], timeout=0.01)
            if owner_dies and not was_broken and (folder / "broken").exists():
                return None
        return playing.result() if num_actions is None else None
    finally:
        playing.cancel()
        await asyncio.wait([playing])
        await episodes.close()


CALLS = st.one_of(
    st.builds(lambda count: call("draw", count=count), st.integers(0, 3)),
    st.builds(lambda text: call("note", text=text), st.sampled_from("ab")),
    st.builds(lambda text: call("shout", text=text), st.sampled_from("ab")),
    st.sampled_from([call("wait"), call("refuse"), call("unknown"), call("break_once")]),
)
TURNS = st.lists(st.lists(CALLS, max_size=4), min_size=1, max_size=4)


# Every example starts servers: a smaller one would cost minutes.
@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    turns=TURNS,
    environment=st.sampled_from(["Drawer", "Saved", "Bytes"]),
    victim=st.sampled_from(["process", "server", "owner"]),
    num_actions=st.integers(1, 5) | st.none(),
)
def test_a_conversation_that_was_broken_gives_what_an_unbroken_one_gives(
    tmp_path: Path, turns: Turns, environment: str, victim: str, num_actions: int | None
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as name:
        folder, unbroken = Path(name), Path(name) / "unbroken"
        unbroken.mkdir()
        write_module(folder)
        shared = {"tools": ("my_environments:shout",), "seed": 3}
        expected, _ = attempt(
            Episodes(
                settings_of(environment, parameters={"folder": str(unbroken)}, **shared), [name]
            ),
            turns,
        )
        (folder / "victim").write_text(victim)
        attempts = Attempts(folder, folder / "journal")
        results = None
        for limit in (num_actions, None, None):
            if results is None:
                episodes = attempts.next(environment, parameters={"folder": name}, **shared)
                results = asyncio.run(until_broken(episodes, turns, folder, limit))
        attempts.close()
        assert results == expected
        assert not any(one.failure for one in expected)
        notes = [path / "notes" for path in (unbroken, folder)]
        assert notes[0].exists() == notes[1].exists()
        assert not notes[0].exists() or notes[0].read_text() == notes[1].read_text()
