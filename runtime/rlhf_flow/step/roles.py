"""What a role can do: one class for each thing that a role can hold, with its primitives.

A role is a language model with a head, or a source of rewards. Whether it is trained, generates or
is saved follows from the calls of the graphs.

To add a primitive add a row and a method here, its execution in the runtime, and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import ClassVar, NoReturn, Protocol

from rlhf_api.calls import CallKind
from rlhf_api.plan import ModelHead
from rlhf_flow.errors import FlowError, UnknownPrimitive
from rlhf_flow.step import columns
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import CopyOptions, GenerateOptions, Options, TrainOptions
from rlhf_flow.step.checks import checked_call, suggest
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_flow.step.operations import WeightedSum
from rlhf_flow.step.reward_terms import ModelTerm, RewardTerms


@dataclass(frozen=True)
class Primitive:
    """Something that a role can do."""

    method: str
    """Its name."""
    kind: CallKind
    """What it does."""
    reads: tuple[str, ...] = ()
    """Fields it needs; those of a loss are added."""
    writes: tuple[str, ...] = ()
    """Fields it makes, whoever's it is."""
    own: tuple[Callable[[str], str], ...] = ()
    """Fields it makes that are named after the role, by its name."""

    def fields_of(self, role: str) -> tuple[str, ...]:
        """The fields that a role makes by it."""
        return (*self.writes, *(name(role) for name in self.own))


_SEQUENCES = (columns.PROMPT_TOKENS, columns.RESPONSE_TOKENS)
_GENERATE = Primitive(
    "generate",
    CallKind.GENERATE,
    reads=tuple(sorted(columns.PROMPT_FIELDS)),
    writes=(
        columns.RESPONSE_TOKENS,
        columns.RESPONSE_TEXT,
        columns.ROLLOUT_LOG_PROBS,
        columns.FINISHED,
        columns.SAMPLE_INDEX,
    ),
)
_LOG_PROBS = Primitive("log_probs", CallKind.INFER, _SEQUENCES, own=(columns.log_probs_of,))
_VALUES = Primitive("values", CallKind.INFER, _SEQUENCES, own=(columns.values_of,))
_SCORES = Primitive("scores", CallKind.INFER, _SEQUENCES, own=(columns.scores_of,))
_SCORES_OF_TEXTS = Primitive(
    "scores_of_texts",
    CallKind.INFER,
    (columns.RECORD, columns.RESPONSE_TEXT, columns.FINISHED),
    own=(columns.scores_of,),
)
"""Of a reward model with a tokenizer of its own; only `RewardSource.score` calls it."""
_TRAIN = Primitive("train", CallKind.TRAIN)
_COPY = Primitive("copy_weights_from", CallKind.COPY)
_SCORE = Primitive(
    "score",
    CallKind.SCORE,
    reads=(columns.RESPONSE_TEXT, columns.RECORD, columns.PROMPT_ID, columns.FINISHED),
    own=(columns.scores_of, columns.valid_of),
)


class Caller(Protocol):
    """The flow, as a role sees it."""

    samples_per_prompt: int
    """Responses to a prompt where a call does not say it."""

    def call(
        self,
        role: str,
        primitive: Primitive,
        batch: BatchValue | None,
        options: Options = None,
        auxiliary: Sequence[BatchValue] = (),
        writes: Sequence[str] = (),
    ) -> BatchValue:
        """Check a call and make it; one that copies weights has no batch.

        Args:
            writes: fields that it makes beside those of its primitive.

        Raises:
            FlowError: it is not allowed.
        """

    def terms_of(self, role: str) -> RewardTerms:
        """What a role's score is the sum of."""

    def add_up(self, role: str, batch: BatchValue, operation: WeightedSum) -> BatchValue:
        """The sum of the terms of a role's score."""


class Role:
    """A role as a step sees it: its primitives are methods that take and return batches."""

    primitives: ClassVar[tuple[Primitive, ...]] = ()
    head: ClassVar[ModelHead | None] = None
    """What its model ends in. None: it has no model."""

    def __init__(self, name: str, flow: Caller) -> None:
        self._name = name
        self._flow = flow

    def __getattr__(self, method: str) -> NoReturn:
        if method.startswith("_"):
            raise AttributeError(method)
        methods = [each.method for each in self.primitives]
        otherwise = "call one of these or let the role be something else in roles()"
        raise UnknownPrimitive(
            f"{self._name} has no primitive {method}: a {type(self).__name__} has "
            f"{', '.join(sorted(methods))}; {suggest(method, methods, otherwise)}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"


class Model(Role):
    """A language model with some head."""

    losses: ClassVar[tuple[type[Loss], ...]]
    """By which it can be trained."""
    auxiliary_losses: ClassVar[tuple[type[Loss], ...]] = ()
    """Those that can be added, on rows of their own."""

    @checked_call
    def train(
        self,
        batch: BatchValue,
        loss: Loss,
        *auxiliary: tuple[BatchValue, Loss],
        from_step: int = 0,
    ) -> None:
        """Optimizer steps on a batch.

        Args:
            batch: with the fields that the loss reads.
            loss: what is minimized.
            auxiliary: batches with a loss each that is added to it, such as `(flow.pretraining(),
                CrossEntropy(weight=0.1))`; they are cut into as many mini-batches.
            from_step: steps at the beginning in which it is left out.

        Raises:
            FlowError: a loss that does not fit, or a number of steps that is none.
        """
        if not isinstance(loss, self.losses):
            raise FlowError(
                f"{self._name}.train needs a loss that fits it after the batch: got "
                f"{_named(loss)}, allowed "
                f"{' or '.join(f'{each.__name__}(...)' for each in self.losses)}; correct it"
            )
        added = tuple(self._check_auxiliary(each) for each in auxiliary)
        options = TrainOptions(loss, from_step, tuple(each for _, each in added))
        self._flow.call(self._name, _TRAIN, batch, options, [rows for rows, _ in added])

    @checked_call
    def copy_weights_from(self, other: Model) -> None:
        """Take over all weights of another role, as they are when this call comes.

        An optimizer that trains this role goes on with the moments that it has.

        Args:
            other: a role of the same kind, such as flow.actor.

        Raises:
            FlowError: it is none, or this one itself.
        """
        is_model = isinstance(other, Model) and other.head is self.head
        if not is_model or other._name == self._name:
            raise FlowError(
                f"{self._name}.copy_weights_from takes another role of the same kind: got "
                f"{other!r}, allowed a {type(self).__name__} of another name, such as "
                "flow.actor; pass it"
            )
        self._flow.call(self._name, _COPY, None, CopyOptions(other._name))

    def _check_auxiliary(self, auxiliary: object) -> tuple[BatchValue, Loss]:
        """A batch with an auxiliary loss.

        Raises:
            FlowError: it is something else.
        """
        if isinstance(auxiliary, tuple) and len(auxiliary) == 2:
            rows, loss = auxiliary
            if isinstance(loss, self.auxiliary_losses):
                return rows, loss
        names = " or ".join(f"(batch, {each.__name__}(...))" for each in self.auxiliary_losses)
        raise FlowError(
            f"{self._name}.train takes pairs of a batch and a loss after its own loss: got "
            f"{auxiliary!r}, allowed {names or 'none'}; correct it"
        )


def _named(loss: object) -> str:
    return f"{type(loss).__name__}(...)" if isinstance(loss, Loss) else repr(loss)


class LanguageModel(Model):
    """A causal language model: a policy, or a reference."""

    primitives = (_GENERATE, _LOG_PROBS, _TRAIN, _COPY)
    head = ModelHead.LM
    losses = (ClippedLoss, CrossEntropy, Dpo)
    auxiliary_losses = (CrossEntropy,)

    @checked_call
    def generate(
        self,
        batch: BatchValue,
        *,
        samples: int | None = None,
        temperature: float | None = None,
        greedy: bool = False,
    ) -> BatchValue:
        """Responses to prompts, as a new batch: every prompt `samples` times.

        Args:
            batch: with the prompts' fields.
            samples: responses to each. None: rollout.samplesPerPrompt.
            temperature: of sampling. None: rollout.temperature.
            greedy: whether the likeliest token is taken every time.

        Raises:
            FlowError: values that mean nothing.
        """
        number = self._flow.samples_per_prompt if samples is None else samples
        options = GenerateOptions(number, temperature, greedy)
        return self._flow.call(self._name, _GENERATE, batch, options)

    @checked_call
    def log_probs(self, batch: BatchValue) -> BatchValue:
        """The log-probability of every response token, as `<role>_log_probs`."""
        return self._flow.call(self._name, _LOG_PROBS, batch)


class ScalarModel(Model):
    """A language model that gives one number for each token: a critic, or a reward model."""

    primitives = (_VALUES, _SCORES, _TRAIN, _COPY)
    head = ModelHead.SCALAR
    losses = (ValueLoss, BradleyTerry)

    @checked_call
    def values(self, batch: BatchValue) -> BatchValue:
        """The value before every response token, as `<role>_values`."""
        return self._flow.call(self._name, _VALUES, batch)

    @checked_call
    def scores(self, batch: BatchValue) -> BatchValue:
        """What a reward model says of every response, after its last token, as `<role>_scores`."""
        return self._flow.call(self._name, _SCORES, batch)


class RewardSource(Role):
    """What scores responses: the manifest's rewards of this role. A cost is one, too."""

    primitives = (_SCORE,)

    @checked_call
    def score(self, batch: BatchValue) -> BatchValue:
        """A score for every response, as `<role>_scores`, and whether it counts, as
        `<role>_valid`. Where several rewards make it up, each has a column beside it,
        `<role>_<reward>_scores`.

        Verifiers and services score in one call, each reward model in one of its own.
        """
        name, terms = self._name, self._flow.terms_of(self._name)
        term_columns = {each: columns.term_scores_of(name, each) for each in terms.columns}
        scored: list[BatchValue] = []
        weights: dict[str, float] = {}
        if terms.hosted or not terms.models:
            hosted = [term_columns[each] for each in terms.hosted if each in term_columns]
            scored.append(self._flow.call(name, _SCORE, batch, writes=hosted))
            weights[columns.scores_of(name)] = 1.0
        if not terms.models:
            return scored[0]
        for term in terms.models:
            field = term_columns.get(term.name, columns.scores_of(term.role))
            scored.append(self._score_by(term, batch, field))
            weights[field] = term.weight
        joined = reduce(or_, scored)
        total = WeightedSum(
            weights,
            scores=columns.scores_of(name),
            valid=columns.valid_of(name),
            counted=columns.valid_of(name) if terms.hosted else None,
        )
        return joined.select(*term_columns.values()) | self._flow.add_up(name, joined, total)

    def _score_by(self, term: ModelTerm, batch: BatchValue, field: str) -> BatchValue:
        """What a reward model says, as a field."""
        made = self._flow.call(term.role, _SCORES_OF_TEXTS if term.reads_text else _SCORES, batch)
        own = columns.scores_of(term.role)
        return made if field == own else made.rename(**{own: field})


Roles = Mapping[str, type[Role]]
"""What every role of an algorithm is, by name."""


def primitive_of(kind: type[Role], method: str) -> Primitive | None:
    """The primitive of a call's method, also of one that only a score makes; None: the role has no
    such."""
    of_scores = (_SCORES_OF_TEXTS,) if issubclass(kind, ScalarModel) else ()
    return next((each for each in (*kind.primitives, *of_scores) if each.method == method), None)
