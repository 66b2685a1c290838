"""Generation with a role's current weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rlhf_api.errors import RlhfError
from rlhf_api.plan import GenerationPlan, GraphName
from rlhf_api.spec.truncation import Truncation
from rlhf_flow.step.calls import GenerateOptions
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.out_of_memory import is_out_of_memory
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, Rows, pack, repeat_rows
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.engines.generation import EngineSettings, GenerationEngine
from rlhf_runtime.engines.response_batch import (
    BatchGenerator,
    Generated,
    ResponseBatch,
    Sampling,
)
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.faults import FaultPhase
from rlhf_runtime.models.context import max_sequence_tokens
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.conversations import ConversationMaker
from rlhf_runtime.roles.early_rows import EarlyRows
from rlhf_runtime.roles.generation_engines import make_generation_engine
from rlhf_runtime.roles.response_results import ResponseResults
from rlhf_runtime.roles.sequence_migration import Prompts, SequenceMigration
from rlhf_runtime.roles.weight_sync import WeightSync, WeightVersion
from rlhf_runtime.seeds import sample_seeds

logger = logging.getLogger(__name__)

# Words in the errors that another rank causes, not the model.
PEER_ERRORS = ("connection", "broken pipe", "gloo", "nccl", "timed out")
# The version before any pass.
INITIAL_VERSION = WeightVersion(GraphName.WARM_START, 0, 0)
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Generation:
    """A role's generation on a rank that has its engine, its trainer, or both.

    Without a trainer on the rank it is the complete role. Without an engine it only sends weights.
    """

    def __init__(self, context: RoleContext, trainer: TrainingEngine | None) -> None:
        """Start the engine, if one is on this rank, and plan the weight transfer. Collective over
        the ranks that train or generate.

        On return the trainer is offloaded, and an engine that releases its memory during training
        has released it.
        """
        plan, ranks = context.plan.generation(context.role), context.sync_group
        assert plan is not None and ranks is not None, f"{context.role} does not generate"
        self.engine = trainer
        self.generation = self
        self._context = context
        further_ends = context.job.spec.rollout.end_tokens
        self._tokenizer = TextTokenizer(context.folder, further_ends)
        source = {} if trainer is None else trainer.views()
        if trainer is not None:
            # The trainer is offloaded before the engine starts, so start-up needs no more memory
            # than generation, and the plan's sum for generation covers both.
            trainer.offload(context.role_plan.offload)
        self._generation_engine = self._start_engine(plan) if context.generates_here else None
        self.methods: dict[str, Callable[[CallInputs], Result]] = {"reshard": self.reshard}
        if self._generation_engine is not None:
            self.methods |= {"generate": self.generate, "release": self.release}
            if context.engine_group is not None:
                self.methods["finish"] = self.finish
            self._generator = BatchGenerator(self._generation_engine)
            if plan.release_during_training:
                self._generation_engine.release()
        self._results = ResponseResults(context.job.spec)
        self._conversations = None
        if context.generates_here:
            self._conversations = ConversationMaker.from_context(context, self._tokenizer)
        self._weight_sync = WeightSync(trainer, source, self._generation_engine, ranks)
        self._migration: SequenceMigration | None = None

    def _start_engine(self, plan: GenerationPlan) -> GenerationEngine:
        context, rollout = self._context, self._context.job.spec.rollout
        block_tokens = plan.kv_block_tokens
        settings = EngineSettings(
            folder=context.folder,
            dtype=DTYPE_NAMES[context.precision],
            groups=plan.mesh.tensor_groups,
            kv_cache_bytes=plan.kv_cache_bytes,
            memory_bytes=context.plan.engine_bytes(context.role),
            max_sequence_tokens=max_sequence_tokens(rollout, context.folder),
            max_concurrent_sequences=plan.max_concurrent_sequences,
            block_tokens=block_tokens,
            stop_token_ids=self._tokenizer.end_token_ids,
            stop_texts=self._tokenizer.stop_texts(rollout.stop),
            # An engine shares complete cache blocks only.
            # The prompt of a conversation's later turn begins with all turns before it.
            share_prompts=rollout.environment is not None
            or plan.max_samples_per_prompt > 1
            and rollout.max_prompt_tokens >= block_tokens,
            world=f"{context.incarnation}-{plan.mesh.pool}",
            excluded_tokens=context.excluded_tokens,
            packs_weights=plan.packs_weights,
            records_kept_tokens=rollout.truncation.is_active,
        )
        return make_generation_engine(rollout.engine, settings, context.world)

    def reshard(self, inputs: CallInputs) -> Result:
        """Copy the trainer's weights into the engines, unless they have them."""
        if inputs.graph is GraphName.STEP:
            self._context.faults.enter(FaultPhase.TRANSITION, inputs.step)
        statistics = self._weight_sync.sync(_required_version(inputs))
        return Result(statistics=statistics, began=self._weight_sync.began)

    def release(self, _: CallInputs) -> Result:
        """Release the memory of the engine's weights and cache."""
        assert self._generation_engine is not None
        self._generation_engine.release()
        return Result()

    def sync_initial_weights(self) -> None:
        """Copy the trainer's weights into the engines before the first call, to check the transfer.
        Collective."""
        self._weight_sync.sync(INITIAL_VERSION)

    def generate_first_token(self) -> None:
        """Generate one token, if an engine is on this rank, and restore its state. Collective over
        the engine's ranks.

        Raises:
            UnsupportedModel: the engine cannot compute the model.
        """
        if self._generation_engine is None:
            return
        plan = self._context.plan.generation(self._context.role)
        assert plan is not None
        # Kernels run first at the first token, so an unsupported model fails here.
        prompts = pack([[self._tokenizer.eos_token_id]], np.int32)
        version = self._weight_sync.current_version(INITIAL_VERSION)
        try:
            self._generator.generate(prompts, Sampling(0.0, [0]), version, 1)
        except Exception as error:  # whatever an engine and its kernels raise
            if isinstance(error, RlhfError) or is_out_of_memory(error) or _is_peer_error(error):
                raise
            logger.exception("the first token of %s failed", self._context.role)
            raise UnsupportedModel(
                "the generation engine cannot compute the model of "
                f"{self._context.role}: got {type(error).__name__} at its first token: {error}; "
                "choose a model that vLLM serves on such devices; the rank's log has the traceback"
            ) from error
        if plan.release_during_training:
            self._generation_engine.release()

    def generate(self, inputs: CallInputs) -> Result:
        """Generate `samples` responses to each of this rank's prompts."""
        options, rollout = inputs.call.options, self._context.job.spec.rollout
        assert isinstance(options, GenerateOptions) and self._generation_engine is not None
        samples = options.samples
        # Temperature 0 is greedy decoding.
        temperature = 0.0 if options.greedy else options.temperature or rollout.temperature
        version = self._weight_sync.current_version(_required_version(inputs))
        rows = inputs.rows()
        columns = {name: repeat_rows(column, samples) for name, column in inputs.load(rows).items()}
        index = inputs.index.find(rows)
        columns["sample_index"] = Column(sample_numbers(index.groups, samples))
        prompts = _prompts(index.repeat(samples), columns)
        if self._conversations is not None:
            return self._converse(inputs, prompts, temperature, version)
        sampling = self._sampling(prompts, inputs, temperature)
        responses = self._generator.start(
            columns["prompt_tokens"], sampling, version, rollout.max_response_tokens
        )
        early = self._early_rows(inputs, prompts, lambda: responses.has_ended, responses.generated)
        if inputs.leaves_rows:
            return self._generate_until_migration(inputs, prompts, responses, temperature, early)
        responses.run(early.after_step(self._context.tick))
        return self._results.result(inputs, prompts, responses.generated(), early)

    def _converse(
        self, inputs: CallInputs, prompts: Prompts, temperature: float, version: int
    ) -> Result:
        """Generate responses of several turns."""
        assert self._conversations is not None and self._generation_engine is not None
        position = {row: index for index, row in enumerate(prompts.index.rows.tolist())}

        def sampling(rows: Sequence[int], turns: Sequence[int]) -> Sampling:
            chosen = np.array([position[row] for row in rows], dtype=np.int64)
            return self._sampling(prompts.take(chosen), inputs, temperature, turns)

        records = self._sampling(prompts, inputs, temperature).records_kept_tokens
        responses = self._generator.new_batch(version)
        conversations = self._conversations.start(
            *(inputs, prompts, self._generation_engine, responses, sampling),
            records_kept_tokens=records,
        )
        early = EarlyRows(
            inputs,
            prompts,
            conversations.has_ended,
            conversations.generated,
            self._tokenizer.decode,
            self._context.send_ended,
            conversations.columns,
        )
        conversations.run(early.after_step(self._context.tick))
        result = self._results.result(
            inputs, prompts, conversations.generated(), early, conversations.columns()
        )
        own, further = result.statistics, conversations.statistics
        statistics = replace(
            own, means={**own.means, **further.means}, sums={**own.sums, **further.sums}
        )
        return replace(result, statistics=statistics, episodes=conversations.report)

    def _generate_until_migration(
        self,
        inputs: CallInputs,
        prompts: Prompts,
        responses: ResponseBatch,
        temperature: float,
        early: EarlyRows,
    ) -> Result:
        """Generate until the finishing engines can take all unfinished rows. Collective over the
        engines."""
        context = self._context
        assert context.engine_group is not None, "the plan migrates rows"
        migration = SequenceMigration(context.plan, context.role, context.engine_group, inputs.at)
        self._migration = migration
        responses.run_until(migration.is_due, early.after_step(context.tick))
        ended = np.flatnonzero(responses.has_ended)
        running = np.flatnonzero(~responses.has_ended)
        unfinished = migration.hand_over(prompts.take(running), responses, running, temperature)
        result = self._results.result(
            inputs, prompts.take(ended), responses.generated(ended), early
        )
        return replace(result, unfinished=unfinished)

    def finish(self, inputs: CallInputs) -> Result:
        """Finish the unfinished responses of this engine, and its share of the others'."""
        migration, self._migration = self._migration, None
        assert migration is not None, "`generate` hands rows over before `finish`"
        migrated = migration.assigned_rows(inputs)
        sampling = self._sampling(migrated, inputs, migration.temperature)
        max_tokens = self._context.job.spec.rollout.max_response_tokens
        migration.resume(migrated, sampling, max_tokens)
        prompts = migration.finishing(migrated)
        early = self._early_rows(
            inputs,
            prompts,
            partial(migration.has_ended, migrated),
            partial(migration.generated, migrated),
        )
        migration.responses.run(early.after_step(self._context.tick))
        return self._results.result(inputs, prompts, migration.generated(migrated), early)

    def close(self) -> None:
        """Close the engine."""
        if self._generation_engine is not None:
            self._generation_engine.close()

    def _early_rows(
        self,
        inputs: CallInputs,
        prompts: Prompts,
        has_ended: Callable[[], NDArray[np.bool_]],
        generated: Callable[[Rows], Generated],
    ) -> EarlyRows:
        send, decode = self._context.send_ended, self._tokenizer.decode
        return EarlyRows(inputs, prompts, has_ended, generated, decode, send)

    def _sampling(
        self,
        prompts: Prompts,
        inputs: CallInputs,
        temperature: float,
        turns: Sequence[int] | None = None,
    ) -> Sampling:
        """Return the sampling of rows.

        Args:
            prompts: one row per response.
            inputs: of the call.
            temperature: 0 is greedy.
            turns: number of each row's turn. None: responses have one.
        """
        prompt_ids = prompts.columns["prompt_id"].values.astype(np.int64)
        numbers = prompts.columns["sample_index"].values.astype(np.int64)
        # Seeds depend on neither ranks nor time. So a row is sampled alike on any engine, and again
        # after a restart.
        seed = self._context.job.spec.schedule.seed
        call = f"{inputs.graph.value}/{inputs.call.id}"
        if inputs.round:  # each round samples other responses to a prompt
            call += f"/{inputs.round}"
        turn_numbers = None if turns is None else np.asarray(turns, dtype=np.int64)
        seeds = sample_seeds(seed, inputs.step, prompt_ids, numbers, call, turn_numbers)
        # Greedy decoding has nothing to leave out.
        if temperature == 0:
            return Sampling(temperature, seeds)
        truncation, records = self._truncation(inputs.graph)
        return Sampling(temperature, seeds, truncation, records)

    def _truncation(self, graph: GraphName) -> tuple[Truncation, bool]:
        """Return the truncation of a pass's sampling, and whether the kept tokens are recorded."""
        spec = self._context.job.spec
        # Nothing is trained on the responses of an evaluation, which has settings of its own.
        if graph is GraphName.EVALUATION:
            data = spec.data.evaluation
            return Truncation() if data is None else data.truncation, False
        return spec.rollout.truncation, spec.rollout.truncation.is_active


def _prompts(index: ShardIndex, columns: Mapping[str, Column]) -> Prompts:
    lengths = columns["prompt_tokens"].lengths
    assert lengths is not None
    return Prompts(ShardIndex(index.rows, index.groups, lengths), columns)


def _is_peer_error(error: Exception) -> bool:
    """True if an error says that the engine's other ranks do not respond."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in PEER_ERRORS)


def _required_version(inputs: CallInputs) -> WeightVersion:
    return WeightVersion(inputs.graph, inputs.step, inputs.num_weight_changes)


def sample_numbers(groups: np.ndarray, samples: int) -> np.ndarray:
    """Number the samples of each prompt: int32[rows x samples].

    A prompt may stand in several rows of its group. Its samples have different numbers, so that no
    two share a seed.

    Args:
        groups: of the rows on this rank: complete groups, whose rows are neighbours.
        samples: responses per row.
    """
    # Rows of a group are neighbours: the distance from the first one numbers them.
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    position = np.arange(len(groups)) - first[group_of]
    numbers: np.ndarray = position[:, None] * samples + np.arange(samples)
    return numbers.reshape(-1).astype(np.int32)
