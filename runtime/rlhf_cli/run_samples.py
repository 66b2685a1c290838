"""The samples that `rlhf samples` shows, and their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Group
from rich.text import Text

from rlhf_cli.conversation_text import conversation_lines, indented
from rlhf_runtime.telemetry.errors import NoSamples
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind
from rlhf_runtime.telemetry.visible_text import visible_text

# Steps that an error names at each end of a longer list.
NAMED_STEPS = 6


class Order(StrEnum):
    """The order of samples."""

    WRITTEN = "written"
    BEST = "best"
    WORST = "worst"


@dataclass(frozen=True)
class SampleQuery:
    """The samples that are wanted."""

    step: int | None = None
    """A training step; for evaluations, the number of steps before it. None: the last one; with a
    prompt, all."""
    evaluation: bool = False
    """True: evaluations only. Without a step, evaluations come before training steps anyway."""
    prompt: int | None = None
    """None: any prompt."""
    order: Order = Order.WRITTEN
    limit: int = 10


def find_samples(folder: RunFolder, query: SampleQuery) -> list[ResponseSample]:
    """Return samples of a run, at least one.

    Args:
        folder: of the run.
        query: the samples that are wanted.

    Raises:
        NotARun: the folder contains no run.
        NoSamples: there are none of that kind; the message says which there are.
    """
    # `rlhf fetch` may have fetched the samples alone.
    if not folder.samples.is_dir():
        folder.require_run()
    sampled_steps = {kind: folder.sampled_steps(kind) for kind in SampleKind}
    kind = SampleKind.STEP
    if query.evaluation or (query.step is None and sampled_steps[SampleKind.EVALUATION]):
        kind = SampleKind.EVALUATION
    steps = sampled_steps[kind]
    if query.step is not None:
        steps = [step for step in steps if step == query.step]
    elif query.prompt is None:
        steps = steps[-1:]
    of_steps = [sample for step in steps for sample in folder.read_samples(kind, step)]
    if not of_steps:
        wanted = kind.value if query.step is None else pass_name(kind, query.step)
        raise NoSamples(
            f"no samples of this kind: got {wanted} of {folder.path}, {_allowed(sampled_steps)}"
        )
    of_prompt = [sample for sample in of_steps if query.prompt in (None, sample.prompt_id)]
    if not of_prompt:
        prompts = listed(sorted({sample.prompt_id for sample in of_steps}))
        raise NoSamples(
            f"no samples of this prompt: got prompt {query.prompt} in samples of {kind.value}s, "
            f"allowed {prompts}; give one of these, or another --step"
        )
    return _ordered(of_prompt, query.order)[: query.limit]


def _ordered(samples: Sequence[ResponseSample], order: Order) -> list[ResponseSample]:
    """Return samples in an order; those without a score come last."""
    if order is Order.WRITTEN:
        return list(samples)
    sign = -1.0 if order is Order.BEST else 1.0

    def rank(sample: ResponseSample) -> tuple[bool, float]:
        return sample.score is None, sign * (sample.score or 0.0)

    return sorted(samples, key=rank)


def _allowed(sampled_steps: dict[SampleKind, list[int]]) -> str:
    if not any(sampled_steps.values()):
        return (
            "which has none: telemetry.samplesEverySteps is 0, nothing was generated yet, or the "
            "run is of an older release; set it above 0 and run again"
        )
    steps, evaluations = sampled_steps[SampleKind.STEP], sampled_steps[SampleKind.EVALUATION]
    parts = []
    if steps:
        parts.append(f"--step {listed(steps)}")
    if evaluations:
        parts.append(f"--evaluation --step {listed(evaluations)}")
    return f"allowed {' or '.join(parts)}; give one of these"


def listed(numbers: Sequence[int]) -> str:
    """Write numbers; of many the first and the last ones."""
    shown = [str(number) for number in numbers]
    if len(shown) > 2 * NAMED_STEPS:
        shown = [*shown[:NAMED_STEPS], "...", *shown[-NAMED_STEPS:]]
    return ", ".join(shown)


def pass_name(kind: SampleKind, step: int) -> str:
    """Return the name of a pass."""
    return f"step {step}" if kind is SampleKind.STEP else f"evaluation after step {step}"


def blocks(samples: Iterable[ResponseSample]) -> Iterator[Group]:
    """Yield the text of every sample for a terminal."""
    for sample in samples:
        title = f"{pass_name(sample.kind, sample.step)}, prompt {sample.prompt_id}"
        if sample.sample:
            title += f", response {sample.sample}"
        yield Group(
            Text(f"{title}  {numbers_text(sample)}", "bold"),
            Text(visible_text(sample.row), "dim"),
            Text("prompt", "dim"),
            Text(indented(sample.prompt)),
            *_response(sample),
            Text(),
        )


def _response(sample: ResponseSample) -> Iterator[Text]:
    if sample.conversation is None:
        yield Text("response", "dim")
        yield Text(indented(sample.response))
    else:
        yield from conversation_lines(sample.conversation)


def numbers_text(sample: ResponseSample) -> str:
    """Write the scores of a sample, its advantage, its length and its end."""
    numbers = [
        f"{visible_text(name)}={'none' if score is None else f'{score:.5g}'}"
        for name, score in sample.scores.items()
    ]
    if sample.advantage is not None:
        numbers.append(f"advantage={sample.advantage:.5g}")
    return " ".join([*numbers, f"({sample.tokens} tokens, {sample.ended_by.value})"])
