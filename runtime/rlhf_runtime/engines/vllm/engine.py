"""VllmEngine: a vLLM engine with parameters in ordinary storage, driven step by step.

Owned by a generating role. All ranks of a tensor-parallel group make the same calls in the same
order; groups are independent of each other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlhf_api.spec.resources import Device
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.data.stop_texts import StopSearch, StopTexts
from rlhf_runtime.engines.generation import (
    EngineSettings,
    NewSequence,
    SequenceEnded,
    T,
)
from rlhf_runtime.engines.kept_tokens import SequenceSets
from rlhf_runtime.engines.vllm import patches
from rlhf_runtime.engines.vllm.arguments import engine_arguments
from rlhf_runtime.engines.vllm.layout import vllm_views
from rlhf_runtime.engines.vllm.libraries import import_vllm
from rlhf_runtime.engines.vllm.memory import DeviceMemory, EngineMemory, HostMemory
from rlhf_runtime.engines.vllm.packed_weights import PackedWeights, linear_layers
from rlhf_runtime.engines.vllm.patches import engine_groups, leave_groups
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import GenerationFailed, StaleWeights, UnsupportedModel
from rlhf_runtime.reshard.views import Views

MAX_REFUSAL_CHARACTERS = 300
"""Maximum length of vLLM's text in an error: it may list all supported models."""


@dataclass
class _Running:
    """A running request, its tokens and log-probabilities so far."""

    max_tokens: int
    stop_search: StopSearch | None
    """None: no text ends it."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    kept: SequenceSets | None = None
    """The tokens that its truncation kept. None: they are not recorded."""

    def add(
        self, tokens: Sequence[int], log_probs: Sequence[float], *, has_end_token: bool
    ) -> bool:
        """Add the tokens of a step; return true if a stop text has ended the response.

        Args:
            tokens: of the step.
            log_probs: of the tokens.
            has_end_token: True if the last token is an end token.
        """
        # A stop text inside of an end token, such as < in <eos>, would drop the end token.
        search = None if has_end_token else self.stop_search
        for token, log_prob in zip(tokens, log_probs, strict=True):
            is_end = search is not None and search.add(token)
            # What follows the stop text within a token cannot be cut off from it.
            if not (is_end and search and search.goes_beyond):
                self.tokens.append(token)
                self.log_probs.append(log_prob)
            if is_end:
                return True
        return False

    def ended(self, number: int, reason: StopReason | None) -> SequenceEnded:
        tokens = np.array(self.tokens, dtype=np.int32)
        log_probs = np.array(self.log_probs, dtype=np.float32)
        kept = None if self.kept is None else self.kept.encode()
        return SequenceEnded(number, tokens, log_probs, reason, kept)


class VllmEngine:
    """Generates sequences, and gives access to its weights' storage: a `GenerationEngine`."""

    def __init__(self, settings: EngineSettings, world: World) -> None:
        """Build the engine; collective over the ranks of the settings' groups."""
        device = world.device
        import_vllm(Device.CPU if device.type == "cpu" else Device.GPU)
        set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
        # Before the engine is built: its constructors call the patched functions.
        patches.disable_weight_packing()
        patches.inspect_models_in_process()
        local_rank = 0 if device.type == "cpu" else (device.index or 0)
        patches.use_existing_world(dist.get_rank(), local_rank, settings.world)
        patches.keep_process_group()
        self._settings = settings
        with engine_groups(settings.groups, world.timeout):
            self._core = _build_core(settings, device)
        if device.type == "cpu":
            patches.unlink_shared_memory(settings.world)
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a no-op
        torch.set_num_threads(num_threads)
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        patches.exclude_tokens(self._runner.get_model(), settings.excluded_tokens)
        if settings.records_kept_tokens and device.type == "cpu":
            patches.record_kept_tokens(self._runner, self._core.scheduler)
        self._running: dict[str, _Running] = {}
        self._vocabulary: int = self._core.vllm_config.model_config.get_vocab_size()
        self._memory: EngineMemory = (
            HostMemory(self._runner) if device.type == "cpu" else DeviceMemory(self._core)
        )
        model = self._runner.get_model()
        self._packed = PackedWeights(linear_layers(model) if settings.packs_weights else ())
        self._version: int | None = None

    @property
    def version(self) -> int | None:
        """Version of the published weights; None without weights."""
        return self._version

    @property
    def has_work(self) -> bool:
        """True if requests are scheduled, or, on a GPU, a batch is in flight."""
        return bool(self._core.scheduler.has_requests() or self._core.batch_queue)

    def views(self) -> Views:
        """This rank's storage of every weight, by Hugging Face name."""
        return vllm_views(self._runner.model)

    def add(self, sequences: Sequence[NewSequence], *, keeps_prefixes: bool = False) -> None:
        """Add a request per sequence."""
        for sequence in sequences:
            self._require_version(sequence.weight_version)
        if not self._running and not keeps_prefixes:
            # Not with the weights: the transfer that writes them may need the cache's memory.
            self._memory.restore_cache()
            self._reset_prefix_cache()
        now = time.time()
        for sequence in sequences:
            request = _request(sequence, self._settings.stop_token_ids, now)
            # Before the core gets it: outputs are matched to sequences by the request's id.
            sets = SequenceSets(self._vocabulary) if sequence.records_kept_tokens else None
            self._running[request.request_id] = _Running(
                sequence.max_tokens, _stop_search(sequence, self._settings.stop_texts), kept=sets
            )
            prepared, wave = self._core.preprocess_add_request(request)
            self._core.add_request(prepared, wave)

    def step(self) -> list[SequenceEnded]:
        """Schedule and run the next batch."""
        outputs, executed = self._core.step_fn()
        self._core.post_step(model_executed=executed)
        ended, stopped = [], []
        for output in outputs[0].outputs if outputs and 0 in outputs else ():
            running = self._running.get(output.request_id)
            if running is None:  # aborted while the step was in flight
                continue
            reason = _add_output(running, output)
            if reason is None:
                continue
            if output.finish_reason is None:
                stopped.append(output.request_id)
            del self._running[output.request_id]
            ended.append(running.ended(int(output.request_id), reason))
        if stopped:
            self._core.abort_requests(stopped)
        return ended

    def abort(self, ids: Sequence[int]) -> list[SequenceEnded]:
        """Abort requests. Their keys and values are free on return if no others run."""
        self._core.abort_requests([str(number) for number in ids])
        ended = [self._running.pop(str(number)).ended(number, None) for number in ids]
        # vLLM still steps until it has removed them; outputs of these steps are ignored.
        while not self._running and self.has_work:
            self.step()
        return ended

    def share(self, value: T) -> T:
        """Return the value of the engine's first rank."""
        from vllm.distributed import get_tp_group

        shared: T = get_tp_group().broadcast_object(value, src=0)
        return shared

    def publish(self, version: int) -> None:
        """Declare that the storage of `views` holds the weights of this version."""
        self._packed.pack()
        self._version = version

    def release(self) -> None:
        """Free the memory of weights and cache."""
        self._version = None
        self._packed.drop()
        self._memory.release()

    def restore(self) -> None:
        """Allocate the memory of the weights again; they are undefined until published."""
        self._version = None
        self._memory.restore_weights()

    def close(self) -> None:
        """Shut the engine down and free its memory. Collective over its ranks."""
        self._core.shutdown()
        leave_groups()

    def _require_version(self, version: int) -> None:
        if version != self._version:
            present = "none" if self._version is None else f"version {self._version}"
            raise StaleWeights(
                f"the engine has other weights than a sequence names: got {present}, allowed "
                f"version {version}; publish these weights before sequences are added"
            )

    def _reset_prefix_cache(self) -> None:
        # Cached keys and values are those of older weights. Resetting them also makes a call's
        # results independent of earlier calls.
        if not self._core.reset_prefix_cache():
            raise StaleWeights(
                "keys and values of older weights are still in use: got a prefix cache that vLLM "
                "could not reset, allowed only between generations; nothing was generated"
            )


def _request(sequence: NewSequence, stop_token_ids: Sequence[int], arrival_time: float) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    truncation = sequence.truncation
    parameters = SamplingParams(
        temperature=sequence.temperature,
        top_p=truncation.top_p or 1.0,
        top_k=truncation.top_k or 0,  # all tokens
        min_p=truncation.min_p or 0.0,
        max_tokens=sequence.max_tokens,
        logprobs=0,  # only of sampled tokens
        seed=sequence.seed if sequence.temperature > 0 else None,
        stop_token_ids=list(stop_token_ids),
        ignore_eos=True,  # stop_token_ids lists all tokens that end a response
        detokenize=False,
    )
    return EngineCoreRequest(
        request_id=str(sequence.id),
        prompt_token_ids=sequence.prompt.tolist(),
        mm_features=None,
        sampling_params=parameters,
        pooling_params=None,
        arrival_time=arrival_time,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def _stop_search(sequence: NewSequence, stop_texts: StopTexts | None) -> StopSearch | None:
    if stop_texts is None:
        return None
    num_given = len(sequence.prompt) - sequence.num_generated
    return stop_texts.search(sequence.prompt[num_given:].tolist())


def _add_output(running: _Running, output: Any) -> StopReason | None:
    """Add the output of a step to its request; return the reason if the request has ended."""
    from vllm.v1.engine import FinishReason

    log_probs = [] if output.new_logprobs is None else output.new_logprobs.logprobs[:, 0].tolist()
    num_before = len(running.tokens)
    has_end_token = output.finish_reason is FinishReason.STOP
    has_stop_text = running.add(output.new_token_ids, log_probs, has_end_token=has_end_token)
    # A step gives one token, which may have been left out.
    if running.kept is not None and len(running.tokens) > num_before:
        running.kept.add(output.new_sampling_mask.token_ids, running.tokens[-1])
    match output.finish_reason:
        case FinishReason.STOP:
            return StopReason.END_TOKEN
        case None | FinishReason.LENGTH if has_stop_text:
            return StopReason.STOP_TEXT
        case FinishReason.LENGTH:
            is_own_limit = len(running.tokens) == running.max_tokens
            return StopReason.TOKEN_LIMIT if is_own_limit else StopReason.CONTEXT_LIMIT
        case None:
            return None
    raise GenerationFailed(
        f"vLLM ended a request: got finish reason {output.finish_reason} for request "
        f"{output.request_id} after {len(running.tokens)} tokens, allowed stop or length"
    )


def _build_core(settings: EngineSettings, device: torch.device) -> Any:
    """Build vLLM's engine core.

    Raises:
        UnsupportedModel: vLLM refuses the model or its settings, before it allocates any memory.
    """
    # As vLLM's front end does, which would also start servers and handle text.
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    total = None if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
    arguments = EngineArgs(**engine_arguments(settings, total))
    try:
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    except ValueError as error:  # pydantic's ValidationError is one, too
        text = " ".join(str(error).split())[:MAX_REFUSAL_CHARACTERS]
        raise UnsupportedModel(
            f"vLLM refuses the model: got {settings.folder}: {text}; choose a model that it serves"
        ) from error
    return EngineCore(config, Executor.get_class(config), log_stats=False)
