"""Tries the environments of a job: two conversations with each, before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlhf_api.spec.conversation import EnvironmentSpec
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.job_dialogues import job_dialogues
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.errors import InvalidEnvironment
from rlhf_runtime.environments.from_manifest import environment_settings, tool_sources
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription
from rlhf_runtime.preflight.environment_play import Play, Player
from rlhf_runtime.preflight.environments import SECTION, title_of
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.trial_rows import TrialRow
from rlhf_runtime.python_path import NO_CODE, PythonPath
from rlhf_runtime.telemetry.metric_names import format_seconds
from rlhf_runtime.telemetry.shortened_text import shorten
from rlhf_runtime.telemetry.visible_text import visible_text

NUM_PLAYS = 2
# Limits of texts that are shown.
ANSWER_CHARACTERS = 80
TEXT_CHARACTERS = 400
DETAIL_CHARACTERS = 3000
SHOWN_IDS = 60

Plays = Sequence[Play]


def try_environments(
    spec: RLHFJobSpec,
    description: EnvironmentDescription,
    tokenizer: TextTokenizer,
    rows: Sequence[TrialRow],
    one_machine: bool,
    findings: Findings,
    python_path: PythonPath = NO_CODE,
) -> None:
    """Play two conversations with every environment, and compare them.

    Args:
        spec: of a job with environments, whose code is on the path.
        description: of the environments.
        tokenizer: of the policy.
        rows: of the data; empty: they are not here.
        one_machine: True if the environments will run on this machine.
        findings: collects errors, what was said, and warnings.
        python_path: the user's code and its packages, for programs of servers.
    """
    environment = spec.rollout.environment
    assert environment is not None, "the job has no environment"
    chosen = {name: _row_of(name, description, rows) for name in description.environments}
    for name in [name for name, row in chosen.items() if row is None]:
        title = title_of(environment, name)
        findings.unchecked.append(f"conversations of {title}: there is no row here to begin with")
    with findings.about(*SECTION):
        played = asyncio.run(_play_all(spec, description, tokenizer, chosen, python_path))
        for name, plays in played.items():
            facts = description.environments[name]
            _report(environment, name, facts, plays, tokenizer, one_machine, findings)


def _row_of(
    name: str, description: EnvironmentDescription, rows: Sequence[TrialRow]
) -> TrialRow | None:
    return next((row for row in rows if description.environment_of(row.record) == name), None)


async def _play_all(
    spec: RLHFJobSpec,
    description: EnvironmentDescription,
    tokenizer: TextTokenizer,
    chosen: dict[str, TrialRow | None],
    python_path: PythonPath,
) -> dict[str, Plays]:
    dialogues = job_dialogues(spec, tokenizer, description)
    sources = tool_sources(spec, python_path.folders)
    episodes = Episodes(environment_settings(spec), python_path.code, sources=sources)
    played: dict[str, Plays] = {}
    try:
        await episodes.start()
        for name, row in chosen.items():
            facts = description.environments[name]
            player = Player(spec, episodes, facts, dialogues[name], tokenizer)
            if row is not None:
                played[name] = [await player.play(row) for _ in range(NUM_PLAYS)]
    finally:
        await episodes.close()
    return played


def _report(
    environment: EnvironmentSpec,
    name: str,
    facts: ClassFacts,
    plays: Plays,
    tokenizer: TextTokenizer,
    one_machine: bool,
    findings: Findings,
) -> None:
    """Describe two conversations.

    Raises:
        InvalidEnvironment: one has failed.
    """
    title, first = title_of(environment, name), plays[0]
    begin = f"rollout.environment: {title}, {first.row.name}"
    findings.facts += [visible_text(f"{begin}, {text}") for text in _facts(plays, tokenizer)]
    failed = [play.failure for play in plays if play.failure is not None]
    if failed:
        detail = shorten(failed[0].detail, DETAIL_CHARACTERS)
        if not one_machine:
            *_, last = detail.splitlines() or [""]
            findings.unchecked.append(visible_text(f"{begin}: here a conversation fails: {last}"))
            return
        raise InvalidEnvironment(
            visible_text(
                f"a conversation of {title} fails: got {failed[0].kind.value} in {len(failed)} of "
                f"{len(plays)} scripted ones with {first.row.name}, allowed an answer to every "
                f"call, and a reward at the end; correct the environment:\n{detail}"
            )
        )
    findings.warnings += [
        visible_text(
            f"{title} does not repeat itself: {difference.text}; the numbers of two runs will "
            f"differ{_consequence(difference, facts)}"
        )
        for difference in _differences(*plays)
    ]


def _facts(plays: Plays, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yield what a conversation was: texts, tokens and mask, calls with their times, rewards."""
    play = plays[0]
    num_sampled = sum(len(tokens) for tokens, is_sampled in play.parts if is_sampled)
    num_all = sum(len(tokens) for tokens, _ in play.parts)
    yield f"the prompt, {len(play.prompt):,} tokens: {_quoted(play.prompt.tolist(), tokenizer)}"
    texts = [
        _quoted(tokens.tolist(), tokenizer)
        if is_sampled
        else f"[answer: {_quoted(tokens.tolist(), tokenizer)}]"
        for tokens, is_sampled in play.parts
    ]
    yield f"the response, {num_sampled:,} of {num_all:,} tokens are sampled: {' '.join(texts)}"
    yield f"ids of tokens, those of answers in brackets: {_ids(play)}"
    for number, call in enumerate(play.calls):
        times = [
            format_seconds(one.calls[number].seconds) for one in plays if number < len(one.calls)
        ]
        reward = "" if call.reward is None else f", reward of the turn {call.reward:g}"
        answer = shorten(call.answer, ANSWER_CHARACTERS)
        yield f"{call.text} -> {answer!r} ({' and '.join(times)}{reward})"
    begins = " and ".join(format_seconds(one.begin_seconds) for one in plays)
    ends = " and ".join(format_seconds(one.end_seconds) for one in plays)
    reward = "none" if play.end is None or play.end.reward is None else _reward(play.end.reward)
    yield f"its begin took {begins}, its end {ends}; the reward is {reward}"


def _ids(play: Play) -> str:
    parts = [
        " ".join(map(str, tokens.tolist()))
        if is_sampled
        else f"[{' '.join(map(str, tokens.tolist()))}]"
        for tokens, is_sampled in play.parts
    ]
    words = " ".join(parts).split(" ")
    return " ".join(words if len(words) <= SHOWN_IDS else [*words[:SHOWN_IDS], "..."])


def _quoted(tokens: list[int], tokenizer: TextTokenizer) -> str:
    return repr(shorten(tokenizer.text_of(tokens), TEXT_CHARACTERS))


def _reward(reward: object) -> str:
    return f"{reward:g}" if isinstance(reward, float) else repr(reward)


class _Difference(NamedTuple):
    """A difference between two conversations with the same turns.

    tool: whose answers differ; empty: it is no answer of a tool.
    """

    text: str
    tool: str = ""


def _differences(first: Play, second: Play) -> Iterator[_Difference]:
    pairs: list[tuple[str, str, object, object]] = [
        ("the observation of reset", "", first.observation, second.observation)
    ]
    for one, other in zip(first.calls, second.calls, strict=True):
        pairs.append((f"the answer to {one.text}", one.tool, one.answer, other.answer))
        pairs.append((f"the reward of the turn with {one.text}", "", one.reward, other.reward))
    assert first.end is not None and second.end is not None
    pairs.append(("the reward", "", first.end.reward, second.end.reward))
    for what, tool, before, now in pairs:
        if before != now:
            got = " and ".join(shorten(repr(value), ANSWER_CHARACTERS) for value in (before, now))
            yield _Difference(f"{what} was {got}", tool)


def _consequence(difference: _Difference, facts: ClassFacts) -> str:
    """Return what a difference means for conversations that go on after a restart."""
    if difference.tool and not facts.tools[difference.tool].repeats:
        return (
            ", but conversations go on after a restart: answers of servers and of methods with "
            "@side_effects are kept in the journal, and no such call is repeated"
        )
    return (
        ", and a conversation that is rebuilt after a restart is invalid; take random numbers from "
        "random or numpy without a seed of your own and no time, or mark such methods with "
        "@side_effects of rlhf_runtime.environments"
    )
