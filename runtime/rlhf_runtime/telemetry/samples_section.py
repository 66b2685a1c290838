"""The report's section with samples: evaluations side by side, and responses of training steps.

The page contains all texts; `samples.js` chooses which ones are shown. Without it the first and the
last evaluation and the last step are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from rlhf_runtime.telemetry.conversations import ConversationTurn
from rlhf_runtime.telemetry.metric_names import format_value
from rlhf_runtime.telemetry.metric_table import Format
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind
from rlhf_runtime.telemetry.shortened_text import shorten_further
from rlhf_runtime.telemetry.visible_text import visible_text

# Evaluations and steps with samples on the page, at most so many of each.
MAX_PASSES = 8
# Characters of all texts together: they take about as many bytes on the page as all curves.
TEXT_BUDGET = 600_000


def samples_section(folder: RunFolder) -> str:
    """The section of a run; empty without samples."""
    evaluations = _read(folder, SampleKind.EVALUATION)
    steps = _read(folder, SampleKind.STEP)
    num_texts = 2 * sum(map(len, (*evaluations.values(), *steps.values())))
    if not num_texts:
        return ""
    limit = TEXT_BUDGET // num_texts
    parts = [_SEARCH]
    if evaluations:
        parts.append(_evaluations(evaluations, limit))
    if steps:
        parts.append(_steps(steps, limit))
    return f'<div class="samples">{"".join(parts)}</div>'


_SEARCH = (
    '<div class="controls"><label>Search <input class="query" type="search" '
    'placeholder="in prompts and responses"></label><span class="count"></span></div>'
)


def _read(folder: RunFolder, kind: SampleKind) -> dict[int, list[ResponseSample]]:
    """The samples of some passes, by step: of the first, the last, and others between them."""
    steps = folder.sampled_steps(kind)
    last = min(len(steps), MAX_PASSES) - 1
    chosen = [steps[number * (len(steps) - 1) // max(1, last)] for number in range(last + 1)]
    return {step: folder.read_samples(kind, step) for step in chosen}


def _evaluations(evaluations: dict[int, list[ResponseSample]], limit: int) -> str:
    """For every prompt its responses in all evaluations, of which two are shown side by side."""
    steps = list(evaluations)
    shown = {steps[0], steps[-1]}
    prompts: dict[int, dict[int, list[ResponseSample]]] = {}
    for step, samples in evaluations.items():
        for sample in samples:
            prompts.setdefault(sample.prompt_id, {}).setdefault(step, []).append(sample)
    articles = []
    for responses in prompts.values():
        answers = "".join(
            f'<div class="answer" data-step="{step}"{"" if step in shown else " hidden"}>'
            f"<h4>After step {step:,}</h4>{_responses(of_step, limit)}</div>"
            for step, of_step in responses.items()
        )
        first = next(iter(responses.values()))[0]
        articles.append(_article(first, f'<div class="answers">{answers}</div>', limit))
    return (
        '<h3>Evaluations side by side</h3><div class="controls">'
        f"{_select('left', 'Evaluation after step', steps, steps[0])}"
        f"{_select('right', 'and after step', steps, steps[-1])}</div>"
        f'<div class="evaluated">{"".join(articles)}</div>'
    )


def _steps(steps: dict[int, list[ResponseSample]], limit: int) -> str:
    """The prompts of every step with their responses; one step is shown."""
    last = list(steps)[-1]
    articles = []
    for step, samples in steps.items():
        for _, of_prompt in groupby(samples, lambda sample: sample.prompt_id):
            responses = list(of_prompt)
            attributes = f' data-step="{step}"{"" if step == last else " hidden"}'
            answers = _responses(responses, limit)
            articles.append(_article(responses[0], answers, limit, attributes))
    return (
        '<h3>Training steps</h3><div class="controls">'
        f"{_select('step', 'Step', list(steps), last)}</div>"
        f'<div class="trained">{"".join(articles)}</div>'
    )


def _select(name: str, label: str, steps: Sequence[int], chosen: int) -> str:
    options = "".join(
        f'<option value="{step}"{" selected" if step == chosen else ""}>{step:,}</option>'
        for step in steps
    )
    return f'<label>{label} <select class="{name}">{options}</select></label>'


def _article(sample: ResponseSample, answers: str, limit: int, attributes: str = "") -> str:
    title = f"Prompt {sample.prompt_id}" + (f" · {sample.row}" if sample.row else "")
    return (
        f'<article class="prompt"{attributes}><p class="detail">{_shown(title, limit)}</p>'
        f'<pre class="asked" dir="auto">{_shown(sample.prompt, limit)}</pre>{answers}</article>'
    )


def _responses(samples: Iterable[ResponseSample], limit: int) -> str:
    return "".join(
        f'<div class="response"><p class="detail">{_numbers(sample)}</p>'
        f"{_text(sample, limit)}</div>"
        for sample in samples
    )


def _text(sample: ResponseSample, limit: int) -> str:
    if sample.conversation is None:
        return _pre(sample.response, limit)
    view = sample.conversation.shortened(limit)
    turns = "".join(map(_turn, view.turns))
    left_out = view.num_turns - len(view.turns)
    ending = [f"{left_out} turns between them are left out"] if left_out else []
    if view.failure:
        ending.append(view.failure)
    return turns + "".join(
        f'<p class="detail failure">{escape(visible_text(text))}</p>' for text in ending
    )


def _turn(turn: ConversationTurn) -> str:
    title = f"Turn {turn.number + 1}"
    if turn.reward is not None:
        title += f" · reward <b>{_number(turn.reward)}</b>"
    calls = "".join(
        f'<div class="call"><code>{escape(visible_text(use.call))}</code>'
        f"{'' if use.answer is None else _answer(use.answer, use.is_error)}</div>"
        for use in turn.calls
    )
    return f'<p class="detail">{title}</p>{_pre(turn.text)}{calls}'


def _answer(text: str, is_error: bool) -> str:
    kind = "tool error" if is_error else "tool"
    return f'<pre class="{kind}" dir="auto">{escape(visible_text(text))}</pre>'


def _pre(text: str, limit: int | None = None) -> str:
    shown = escape(visible_text(text)) if limit is None else _shown(text, limit)
    return f'<pre dir="auto">{shown}</pre>'


def _numbers(sample: ResponseSample) -> str:
    numbers = dict(sample.scores)
    if sample.advantage is not None:
        numbers["advantage"] = sample.advantage
    parts = [
        f"{escape(visible_text(name))} <b>{_number(value)}</b>" for name, value in numbers.items()
    ]
    end = escape(f"{sample.tokens:,} tokens, {sample.ended_by.value}")
    return " · ".join([*parts, end])


def _number(value: float | None) -> str:
    return "none" if value is None else format_value(value, Format.NUMBER)


def _shown(text: str, limit: int) -> str:
    return escape(visible_text(shorten_further(text, limit)))
