"""Generation with a role's current weights: into vLLM, then responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from rlhf_api.errors import RlhfError
from rlhf_api.plan import GenerationPlan, GraphName
from rlhf_flow.step.calls import GenerateOptions
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, pack, pack_texts, repeat_rows
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.vllm.arguments import EngineSettings
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.engines.vllm.requests import Generated, Requests, Sampling
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.faults import Phase
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.unfinished_rows import Prompts, UnfinishedRows
from rlhf_runtime.roles.weight_sync import WeightSync, WeightVersion
from rlhf_runtime.seeds import sample_seeds
from rlhf_runtime.workers.inputs import Inputs
from rlhf_runtime.workers.orders import Statistics
from rlhf_runtime.workers.out_of_memory import is_out_of_memory

logger = logging.getLogger(__name__)

LOST_OTHERS = ("connection", "broken pipe", "gloo", "nccl", "timed out")
"""In the texts of errors of which another rank, not the model, is the cause."""
BEFORE_ALL = WeightVersion(GraphName.WARM_START, 0, 0)
"""Of no pass."""
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Generation:
    """A role's generation on a rank that has its engine, its trainer, or both: by vLLM with the
    trainer's current weights, or not at all. Where it has no trainer, it is all of the role."""

    def __init__(self, context: RoleContext, trainer: TrainingEngine | None) -> None:
        """Start the engine, if one is here, and plan how weights come to all of them. Collective
        over the ranks that train or generate.

        What of the trainer leaves its device before the role generates has left it when the engine
        starts, and stays away: starting one takes at most what generating with it does, so that
        the plan's sum for generation is the one for the start. An engine that gives its memory back
        while others work has done so when this returns.
        """
        plan, ranks = context.plan.generation(context.role), context.generating
        assert plan is not None and ranks is not None, f"{context.role} does not generate"
        self.engine = trainer
        self.generation = self
        self._context = context
        self._tokenizer = TextTokenizer(context.folder)
        source = {} if trainer is None else trainer.views()
        if trainer is not None:
            trainer.offload(context.planned.offload)
        self._vllm = self._start_engine(plan) if context.generates_here else None
        self.methods: dict[str, Callable[[Inputs], Result]] = {"reshard": self.reshard}
        if self._vllm is not None:
            self.methods |= {"generate": self.generate, "release": self.release}
            if context.engines is not None:
                self.methods["finish"] = self.finish
            if plan.release_during_training:
                self._vllm.release()
        self._weight_sync = WeightSync(trainer, source, self._vllm, ranks)
        self._rest: UnfinishedRows | None = None

    def _start_engine(self, plan: GenerationPlan) -> VllmEngine:
        context, rollout = self._context, self._context.job.spec.rollout
        block_tokens = plan.kv_block_tokens
        settings = EngineSettings(
            folder=context.folder,
            dtype=DTYPE_NAMES[context.precision],
            groups=plan.mesh.tensor_groups,
            kv_cache_bytes=plan.kv_cache_bytes,
            memory_bytes=context.plan.engine_bytes(context.role),
            max_prompt_tokens=rollout.max_prompt_tokens,
            max_response_tokens=rollout.max_response_tokens,
            max_concurrent_sequences=plan.max_concurrent_sequences,
            block_tokens=block_tokens,
            stop_token_ids=self._tokenizer.end_token_ids,
            share_prompts=plan.max_samples_per_prompt > 1
            and rollout.max_prompt_tokens >= block_tokens,  # vLLM shares whole blocks only
            world=f"{context.incarnation}-{plan.mesh.pool}",
        )
        return VllmEngine(settings, context.world)

    def reshard(self, inputs: Inputs) -> Result:
        """Bring the trainer's weights into the engines, unless they are there."""
        if inputs.graph is GraphName.STEP:
            self._context.faults.enter(Phase.TRANSITION, inputs.step)
        statistics = self._weight_sync.sync(_weight_version(inputs))
        return Result(statistics=statistics, began=self._weight_sync.began)

    def release(self, _: Inputs) -> Result:
        """Give the memory of the engine's weights and cache back."""
        assert self._vllm is not None
        self._vllm.release()
        return Result()

    def bring_first_weights(self) -> None:
        """Bring the trainer's weights into the engines before any call does, to try these.
        Collective."""
        self._weight_sync.sync(BEFORE_ALL)

    def generate_first_token(self) -> None:
        """Let the engine, if one is here, generate one token, and leave it as it was. Collective
        over its ranks.

        Raises:
            UnsupportedModel: it cannot.
        """
        if self._vllm is None:
            return
        plan = self._context.plan.generation(self._context.role)
        assert plan is not None
        prompts = pack([[self._tokenizer.eos_token_id]], np.int32)
        try:
            self._vllm.generate(prompts, Sampling(0.0, [0]), max_tokens=1)
        except Exception as error:  # whatever vLLM and its kernels raise
            if isinstance(error, RlhfError) or is_out_of_memory(error) or _lost_others(error):
                raise
            logger.exception("the first token of %s failed", self._context.role)
            raise UnsupportedModel(
                "the generation engine cannot compute the model of "
                f"{self._context.role}: got {type(error).__name__} at its first token: {error}; "
                "choose a model that vLLM serves on such devices; the rank's log has the traceback"
            ) from error
        if plan.release_during_training:
            self._vllm.release()

    def generate(self, inputs: Inputs) -> Result:
        """Responses to this rank's prompts, every prompt `samples` times."""
        options, rollout = inputs.call.options, self._context.job.spec.rollout
        assert isinstance(options, GenerateOptions) and self._vllm is not None
        samples = options.samples
        temperature = 0.0 if options.greedy else options.temperature or rollout.temperature
        self._weight_sync.require_current(_weight_version(inputs))
        prompts_held = inputs.rows()
        carried = {
            name: repeat_rows(column, samples) for name, column in inputs.load(prompts_held).items()
        }
        held = inputs.index.find(prompts_held)
        carried["sample_index"] = Column(sample_numbers(held.groups, samples))
        prompts = _prompts(held.repeat(samples), carried)
        sampling = self._sampling(prompts, inputs, temperature)
        requests = self._vllm.start(carried["prompt_tokens"], sampling)
        if inputs.leaves_rows:
            return self._leave_last_rows(inputs, prompts, requests, temperature)
        requests.run(self._context.tick)
        return self._result(inputs, prompts, requests.generated())

    def _leave_last_rows(
        self, inputs: Inputs, prompts: Prompts, requests: Requests, temperature: float
    ) -> Result:
        """The responses that end before few are left. Collective over the engines."""
        context = self._context
        assert context.engines is not None, "the plan says that rows are left"
        self._rest = UnfinishedRows(context.plan, context.role, context.engines, inputs.at)
        requests.run_until(self._rest.are_few, context.tick)
        ended = np.flatnonzero(requests.has_ended)
        running = np.flatnonzero(~requests.has_ended)
        left = self._rest.leave(prompts.take(running), requests, running, temperature)
        result = self._result(inputs, prompts.take(ended), requests.generated(ended))
        return replace(result, left=left)

    def finish(self, inputs: Inputs) -> Result:
        """The responses that were left: those of this engine, and its share of the others'."""
        rest, self._rest = self._rest, None
        assert rest is not None, "rows are left before they are finished"
        taken = rest.share_of(inputs)
        sampling = self._sampling(taken, inputs, rest.temperature)
        rest.take_over(taken, sampling, self._context.job.spec.rollout.max_response_tokens)
        rest.requests.run(self._context.tick)
        return self._result(inputs, *rest.generated(taken))

    def close(self) -> None:
        """End the engine."""
        if self._vllm is not None:
            self._vllm.close()

    def _sampling(self, prompts: Prompts, inputs: Inputs, temperature: float) -> Sampling:
        prompt_ids = prompts.columns["prompt_id"].values.astype(np.int64)
        number = prompts.columns["sample_index"].values.astype(np.int64)
        seed = self._context.job.spec.schedule.seed
        call = f"{inputs.graph.value}/{inputs.call.id}"
        if inputs.round:  # another round's responses to a prompt are others
            call += f"/{inputs.round}"
        return Sampling(temperature, sample_seeds(seed, inputs.step, prompt_ids, number, call))

    def _result(self, inputs: Inputs, prompts: Prompts, generated: Generated) -> Result:
        lengths = generated.tokens.lengths
        assert lengths is not None
        asked = prompts.index
        index = ShardIndex(asked.rows, asked.groups, asked.lengths + lengths)
        once = inputs.at.tensor == inputs.at.pipeline == 0  # a replica's other ranks hold the same
        texts = self._tokenizer.decode(generated.tokens) if once else []
        count = float(len(index.rows))
        means = {
            "response/length_mean": (float(lengths.sum()), count),
            "response/empty": (float(num_empty(texts)), float(len(texts))),
            "response/truncated": (count - float(generated.finished.sum()), count),
        }
        tokens = float(index.lengths.sum()) if once else 0.0
        maxima = {"response/length_max": float(lengths.max(initial=0))}
        return Result(
            columns={
                **prompts.columns,
                "response_tokens": generated.tokens,
                "rollout_log_probs": generated.log_probs,
                "finished": Column(generated.finished),
                "response_text": pack_texts(texts),
            },
            statistics=Statistics(means, maxima, {"batch/tokens": tokens}),
            index=index,
        )


def _prompts(index: ShardIndex, columns: Mapping[str, Column]) -> Prompts:
    lengths = columns["prompt_tokens"].lengths
    assert lengths is not None
    return Prompts(ShardIndex(index.rows, index.groups, lengths), columns)


def _lost_others(error: Exception) -> bool:
    """Whether an error says that the engine's other ranks do not answer."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in LOST_OTHERS)


def _weight_version(inputs: Inputs) -> WeightVersion:
    return WeightVersion(inputs.graph, inputs.step, inputs.changes)


def sample_numbers(groups: np.ndarray, samples: int) -> np.ndarray:
    """int32[rows x samples]: the number of each sample among all of its prompt, which may have been
    answered before: no two of them are sampled alike.

    Args:
        groups: of the rows that are answered here: whole groups, whose rows are neighbours.
        samples: responses to each.
    """
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    place = np.arange(len(groups)) - first[group_of]
    numbers: np.ndarray = place[:, None] * samples + np.arange(samples)
    return numbers.reshape(-1).astype(np.int32)


def num_empty(texts: Sequence[str]) -> int:
    """How many responses say nothing: only the end token, or only blanks."""
    return sum(not text.strip() for text in texts)
