"""The kinds of roles: language models, scalar models and reward sources, with their primitives.

A role is a language model with a head, or a source of rewards. The calls of the graphs decide
whether it is trained, generates or is saved.

To add a primitive add a row and a method here, its execution in the runtime, and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import ClassVar, NoReturn, Protocol

from rlhf_api.calls import CallKind
from rlhf_api.plan import ModelHead
from rlhf_api.spec.stopping import OnStop, StopAction
from rlhf_flow.errors import FlowError, UnknownPrimitive
from rlhf_flow.step import columns
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import CopyOptions, GenerateOptions, Options, TrainOptions
from rlhf_flow.step.checks import checked_call, suggest
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_flow.step.operations import BothValid, WeightedSum
from rlhf_flow.step.reward_terms import ModelTerm, RewardTerms


@dataclass(frozen=True)
class Primitive:
    """An operation of a role, called as a method."""

    method: str
    kind: CallKind
    reads: tuple[str, ...] = ()
    """Columns, without those of a loss."""
    writes: tuple[str, ...] = ()
    """Columns with fixed names."""
    optional: tuple[str, ...] = ()
    """Columns that it reads if the batch has them."""
    own: tuple[Callable[[str], str], ...] = ()
    """Columns that are named after the role: functions from its name."""

    def columns_written(self, role: str) -> tuple[str, ...]:
        """All columns that it writes as a primitive of a role."""
        return (*self.writes, *(name(role) for name in self.own))


_SEQUENCES = (columns.PROMPT_TOKENS, columns.RESPONSE_TOKENS)
_GENERATE = Primitive(
    "generate",
    CallKind.GENERATE,
    reads=tuple(sorted(columns.PROMPT_COLUMNS)),
    writes=(
        *(columns.RESPONSE_TOKENS, columns.RESPONSE_TEXT, columns.ROLLOUT_LOG_PROBS),
        *(columns.FINISHED, columns.STOP_REASON, columns.SAMPLE_INDEX),
    ),
)
_LOG_PROBS = Primitive(
    "log_probs",
    CallKind.INFER,
    _SEQUENCES,
    optional=(columns.KEPT_TOKENS,),
    own=(columns.log_probs_column,),
)
_VALUES = Primitive("values", CallKind.INFER, _SEQUENCES, own=(columns.values_column,))
_SCORES = Primitive("scores", CallKind.INFER, _SEQUENCES, own=(columns.scores_column,))
# For a reward model with its own tokenizer; only `RewardSource.score` calls it.
_SCORES_OF_TEXTS = Primitive(
    "scores_of_texts",
    CallKind.INFER,
    (columns.RECORD, columns.RESPONSE_TEXT, columns.FINISHED),
    own=(columns.scores_column,),
)
# It reads the columns of its loss only.
_TRAIN = Primitive("train", CallKind.TRAIN)
_COPY = Primitive("copy_weights_from", CallKind.COPY)
_SCORE = Primitive(
    "score",
    CallKind.SCORE,
    reads=(columns.RESPONSE_TEXT, columns.RECORD, columns.PROMPT_ID, columns.FINISHED),
    optional=(columns.EPISODE,),
    own=(columns.scores_column, columns.valid_column),
)


class Caller(Protocol):
    """The part of a flow that roles use."""

    samples_per_prompt: int
    """Responses to a prompt unless a call says otherwise."""
    on_stop: OnStop
    """Treatment of responses by the reason for their end."""
    truncates_sampling: bool
    """True if sampling leaves tokens out, and so records those that it kept."""
    has_conversations: bool
    """True if responses may have several turns."""

    def call(
        self,
        role: str,
        primitive: Primitive,
        batch: BatchValue | None,
        options: Options = None,
        auxiliary: Sequence[BatchValue] = (),
        writes: Sequence[str] = (),
        reads: Sequence[str] = (),
    ) -> BatchValue:
        """Check a call and make it; one that copies weights has no batch.

        Args:
            writes: columns that it writes in addition to those of its primitive.
            reads: columns that it reads in addition to those of its primitive and losses.

        Raises:
            FlowError: it is not allowed.
        """

    def role_terms(self, role: str) -> RewardTerms:
        """The terms of a role's score."""

    def sum_terms(self, role: str, batch: BatchValue, operation: WeightedSum) -> BatchValue:
        """Sum the terms of a role's score."""

    def restrict_valid(self, role: str, batch: BatchValue, operation: BothValid) -> BatchValue:
        """Restrict the rows whose scores by a role count."""


class Role:
    """A role of a flow: its primitives are methods that take and return batches."""

    primitives: ClassVar[tuple[Primitive, ...]] = ()
    head: ClassVar[ModelHead | None] = None
    """ModelHead of its model. None: it has no model."""

    def __init__(self, name: str, flow: Caller) -> None:
        # Private, because public names are primitives; __getattr__ refuses all others.
        self._name = name
        self._flow = flow

    def __getattr__(self, method: str) -> NoReturn:
        # Copying and pickling probe for such methods, and expect this error.
        if method.startswith("_"):
            raise AttributeError(method)
        methods = [primitive.method for primitive in self.primitives]
        otherwise = "call one of these, or change the kind of the role in roles()"
        raise UnknownPrimitive(
            f"{self._name} has no primitive {method}: a {type(self).__name__} has "
            f"{', '.join(sorted(methods))}; {suggest(method, methods, otherwise)}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"


class Model(Role):
    """A language model with some head."""

    losses: ClassVar[tuple[type[Loss], ...]]
    """Losses that can train it."""
    auxiliary_losses: ClassVar[tuple[type[Loss], ...]] = ()
    """Losses that can be added, on other rows."""

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
            batch: with the columns that the loss reads.
            loss: to minimize.
            auxiliary: pairs of a batch and a loss that is added, such as `(flow.pretraining(),
                CrossEntropy(weight=0.1))`; the batch is cut into equally many mini-batches.
            from_step: number of initial steps that do not train the role.

        Raises:
            FlowError: a loss that does not fit the role, or an invalid number of steps.
        """
        if not isinstance(loss, self.losses):
            raise FlowError(
                f"{self._name}.train needs a loss that fits it after the batch: got "
                f"{_named(loss)}, allowed "
                f"{' or '.join(f'{kind.__name__}(...)' for kind in self.losses)}; correct it"
            )
        loss = self._on_stop_applied(batch, loss)
        checked = map(self._check_auxiliary, auxiliary)
        added = tuple((rows, self._on_stop_applied(rows, other)) for rows, other in checked)
        options = TrainOptions(loss, from_step, tuple(other for _, other in added))
        self._flow.call(self._name, _TRAIN, batch, options, [rows for rows, _ in added])

    @checked_call
    def copy_weights_from(self, other: Model) -> None:
        """Copy all weights of another role, as they are when this call runs.

        An optimizer that trains this role keeps its moments.

        Args:
            other: a role of the same kind, such as flow.actor.

        Raises:
            FlowError: another kind of role, or this one itself.
        """
        # With another head there would be no source for some of the weights.
        is_model = isinstance(other, Model) and other.head is self.head
        if not is_model or other._name == self._name:
            raise FlowError(
                f"{self._name}.copy_weights_from takes another role of the same kind: got "
                f"{other!r}, allowed a {type(self).__name__} of another name, such as "
                "flow.actor; pass it"
            )
        self._flow.call(self._name, _COPY, None, CopyOptions(other._name))

    def _on_stop_applied(self, batch: BatchValue, loss: Loss) -> Loss:
        """Apply rollout.onStop to a loss.

        Raises:
            FlowError: the loss would still count responses that are masked or left out.
        """
        on_stop = self._flow.on_stop
        masks, leaves_out = on_stop.has(StopAction.MASK), on_stop.has(StopAction.LEAVE_OUT)
        if masks and isinstance(loss, ClippedLoss | ValueLoss):
            if loss.finished not in (None, columns.UNMASKED):
                raise FlowError(
                    f"{self._name}.train has another condition for rows that count: got "
                    f"finished={loss.finished!r} and Mask in rollout.onStop, allowed None; join "
                    "both conditions with BothValid(...), or write Train"
                )
            return replace(loss, finished=columns.UNMASKED)
        # Answers of the data end where the data say; only generated ones have the column.
        is_generated = columns.FINISHED in getattr(batch, "column_names", ())
        # A score that does not count reaches all other losses, by `valid` or by the preference.
        ignores_the_end = masks or leaves_out and isinstance(loss, CrossEntropy)
        if is_generated and ignores_the_end:
            action = StopAction.MASK if masks else StopAction.LEAVE_OUT
            raise FlowError(
                f"{self._name}.train has a loss that counts responses whatever their end: got "
                f"{_named(loss)} and {action.value} in rollout.onStop, allowed ClippedLoss(...) "
                "or ValueLoss(...); write Train"
            )
        return loss

    def _check_auxiliary(self, auxiliary: object) -> tuple[BatchValue, Loss]:
        """Check a pair of a batch and an auxiliary loss."""
        if isinstance(auxiliary, tuple) and len(auxiliary) == 2:
            rows, loss = auxiliary
            if isinstance(loss, self.auxiliary_losses):
                return rows, loss
        names = " or ".join(f"(batch, {kind.__name__}(...))" for kind in self.auxiliary_losses)
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
        """Generate responses, as a new batch: every prompt `samples` times.

        Args:
            batch: with the columns of prompts.
            samples: responses per prompt. None: rollout.samplesPerPrompt.
            temperature: of sampling. None: rollout.temperature.
            greedy: True to always take the likeliest token.

        Raises:
            FlowError: an invalid value.
        """
        number = self._flow.samples_per_prompt if samples is None else samples
        options = GenerateOptions(number, temperature, greedy)
        on_stop = self._flow.on_stop
        counted = {StopAction.MASK: columns.UNMASKED, StopAction.LEAVE_OUT: columns.RETAINED}
        writes = [column for action, column in counted.items() if on_stop.has(action)]
        if self._flow.truncates_sampling and not greedy:
            writes.append(columns.KEPT_TOKENS)
        if self._flow.has_conversations:
            writes += [columns.RESPONSE_MASK, columns.EPISODE, columns.TURN_REWARDS]
        return self._flow.call(self._name, _GENERATE, batch, options, writes=writes)

    @checked_call
    def log_probs(self, batch: BatchValue) -> BatchValue:
        """The log-probability of every response token, as `<role>_log_probs`.

        At rollout.temperature if responses were sampled, at 1 if they are the data's. Over the
        tokens that truncated sampling kept, if the batch has the column kept_tokens.
        """
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
        """A reward model's score of every response, after its last token, as `<role>_scores`."""
        return self._flow.call(self._name, _SCORES, batch)


class RewardSource(Role):
    """Scores responses by the manifest's rewards of this role. A cost is a reward source, too."""

    primitives = (_SCORE,)

    @checked_call
    def score(self, batch: BatchValue) -> BatchValue:
        """Score every response: `<role>_scores`, and `<role>_valid`, true if the score counts.
        If several rewards contribute, each also gets a column `<role>_<reward>_scores`.

        Verifiers and services score in one call, each reward model in one of its own. No score
        counts of a response that rollout.onStop leaves out.
        """
        scored = self._scored(batch)
        if not self._flow.on_stop.has(StopAction.LEAVE_OUT):
            return scored
        valid = columns.valid_column(self._name)
        retained = BothValid(valid, columns.RETAINED, valid)
        return scored | self._flow.restrict_valid(self._name, batch | scored, retained)

    def _scored(self, batch: BatchValue) -> BatchValue:
        """The scores of every response, whatever its end."""
        # If several terms contribute, each keeps its scores in a column, for metrics and for steps
        # that treat them apart.
        name, terms = self._name, self._flow.role_terms(self._name)
        term_columns = {term: columns.term_scores_column(name, term) for term in terms.columns}
        scored: list[BatchValue] = []
        weights: dict[str, float] = {}
        # A reward host sums its terms itself, with their weights, so the sum has weight 1 below.
        if terms.hosted or not terms.models:
            hosted = [term_columns[term] for term in terms.hosted if term in term_columns]
            # A reward host reports how many scores count.
            leaves_out = self._flow.on_stop.has(StopAction.LEAVE_OUT)
            reads = [columns.RETAINED] if leaves_out else []
            scored.append(self._flow.call(name, _SCORE, batch, writes=hosted, reads=reads))
            weights[columns.scores_column(name)] = 1.0
        if not terms.models:
            return scored[0]
        for term in terms.models:
            column = term_columns.get(term.name, columns.scores_column(term.role))
            scored.append(self._score_by(term, batch, column))
            weights[column] = term.weight
        joined = reduce(or_, scored)
        total = WeightedSum(
            weights,
            scores=columns.scores_column(name),
            valid=columns.valid_column(name),
            # A model scores every response; only verifiers and services may fail to.
            counted=columns.valid_column(name) if terms.hosted else None,
        )
        return joined.select(*term_columns.values()) | self._flow.sum_terms(name, joined, total)

    def _score_by(self, term: ModelTerm, batch: BatchValue, column: str) -> BatchValue:
        scores = self._flow.call(term.role, _SCORES_OF_TEXTS if term.reads_text else _SCORES, batch)
        own = columns.scores_column(term.role)
        return scores if column == own else scores.rename(**{own: column})


# The kind of every role of an algorithm, by name.
Roles = Mapping[str, type[Role]]


def find_primitive(kind: type[Role], method: str) -> Primitive | None:
    """The primitive of a method, internal ones included. None: the kind of role has no such."""
    # A manifest's graph contains internal ones, although a step never names them.
    internal = (_SCORES_OF_TEXTS,) if issubclass(kind, ScalarModel) else ()
    primitives = (*kind.primitives, *internal)
    return next((primitive for primitive in primitives if primitive.method == method), None)
