"""Models and plans of bench-estimator, and their predicted times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.generation import generate_seconds
from rlhf_planner.cost.hardware import CPU
from rlhf_planner.cost.measured_layers import hardware_for, layers_for
from rlhf_planner.cost.micro_batches import CallRows, Lengths
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.memory.generation import GenerationCall, GenerationLoad, kv_bytes
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.problem.profile import Profile
from rlhf_runtime.profiling.subjects import Subject
from rlhf_sizing.limits import MAX_SHARED_TOKENS
from rlhf_sizing.shape import DecoderShape

TRAIN, INFER, GENERATE = "train", "infer", "generate"


@dataclass(frozen=True)
class Job:
    """One batch of equal lengths, and the plan for it."""

    prompts: int
    samples: int
    prompt: int
    """Tokens of each prompt."""
    response: int
    """Tokens of each response."""
    micro_batch: int
    """Padded tokens of a micro-batch."""
    recompute: bool = False
    ranks: int = 1
    mini_batches: int = 1

    @property
    def rows(self) -> int:
        """Responses."""
        return self.prompts * self.samples

    @property
    def name(self) -> str:
        """Name in tables."""
        batch = f"{self.prompts}x{self.samples} of {self.prompt}+{self.response}"
        updates = f", {self.mini_batches} updates" if self.mini_batches > 1 else ""
        recompute = ", recompute" if self.recompute else ""
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{batch}, micro-batch {self.micro_batch}{recompute}{updates}{ranks}"


@dataclass(frozen=True)
class BenchModel:
    """A Llama, and plans of it."""

    name: str
    shape: DecoderShape
    jobs: tuple[Job, ...]
    max_sequences: int = 64
    """Limit of sequences that a profile generates at once."""
    max_positions: int = 2048
    """Limit of tokens in a sequence."""

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a forward pass."""
        return max(
            min(job.micro_batch, job.rows * (job.prompt + job.response)) for job in self.jobs
        )

    def subject(self, folder: Path, *, generates: bool) -> Subject:
        """Subject of a profile of this model."""
        return Subject(
            name=self.name,
            folder=folder,
            shape=self.shape,
            precision=Precision.FLOAT32,
            tensor=1,
            computes=True,
            generates=generates,
            micro_batch_tokens=self.max_tokens,
            max_sequences=self.max_sequences,
            max_positions=self.max_positions,
        )

    def config(self) -> dict[str, object]:
        """Content of config.json."""
        shape = self.shape
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "vocab_size": shape.vocab_size,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 1,
            "dtype": "float32",
        }


# As many plans as a rank correlation needs, and short calls.
SMALLEST = BenchModel(
    "smallest",
    DecoderShape(1, 64, 128, 2, 2, 32, vocab_size=101),
    (Job(2, 2, 8, 8, 64), Job(4, 2, 8, 8, 64)),
    max_sequences=8,
    max_positions=64,
)
"""Model of the smallest size."""
MODELS = (
    BenchModel(
        "tiny",
        DecoderShape(2, 128, 512, 4, 4, 32, vocab_size=101),
        (
            Job(64, 8, 8, 8, 4096),
            Job(64, 8, 8, 8, 512),
            Job(32, 4, 64, 64, 4096),
            Job(32, 4, 64, 64, 1024),
            Job(32, 4, 64, 64, 4096, recompute=True),
            Job(32, 4, 64, 64, 4096, mini_batches=4),
            Job(8, 1, 512, 512, 4096),
            Job(16, 1, 48, 16, 4096),
            Job(32, 4, 64, 64, 4096, ranks=2),
            Job(32, 4, 64, 64, 1024, recompute=True, ranks=2),
        ),
    ),
    BenchModel(
        "100M",
        DecoderShape(12, 768, 2048, 12, 4, 64, vocab_size=16000),
        (
            Job(8, 2, 32, 32, 1024),
            Job(8, 2, 32, 32, 128),
            Job(8, 2, 32, 32, 1024, recompute=True),
            Job(8, 1, 16, 16, 1024),
            Job(8, 1, 16, 16, 1024, mini_batches=4),
            Job(1, 2, 384, 128, 1024),
            Job(4, 4, 48, 48, 1024),
            Job(4, 1, 16, 48, 64),
            Job(8, 2, 32, 32, 1024, ranks=2),
            Job(8, 2, 32, 32, 128, recompute=True, ranks=2),
        ),
    ),
)


def predict(model: BenchModel, job: Job, profile: Profile | None) -> dict[str, float]:
    """Predict seconds of a job's calls.

    Args:
        model: its shape sets the work.
        job: batch and plan.
        profile: measured with as many ranks. None: the preset of a core.
    """
    hardware = hardware_for(CPU, profile)
    layers = layers_for(model.shape, Precision.FLOAT32, hardware, profile)
    links = Links(hardware, job.ranks)
    role = _role(model, job)
    prompt, response = Lengths(job.prompt, job.prompt), Lengths(job.response, job.response)
    batch = CallRows(job.rows, prompt, response, job.samples)
    seconds = {
        INFER: infer_seconds(role, batch, layers, links).total,
        TRAIN: train_seconds(role, batch, layers, links, job.mini_batches).total,
    }
    if job.ranks == 1:
        load = generation_load(model, job)
        call = GenerationCall(job.prompts, job.samples)
        # As in the ranks: the cache fits all sequences at once.
        cache = kv_bytes(load, 1, job.rows)
        generated = generate_seconds(load, call, role.mesh, cache, prompt, response, layers, links)
        seconds[GENERATE] = generated.total
    return seconds


def generation_load(model: BenchModel, job: Job) -> GenerationLoad:
    """Load of the generation engine."""
    return GenerationLoad(
        shape=model.shape,
        mesh=Mesh(pool="cpu", data=job.ranks),
        device=Device.CPU,
        number_bytes=4,
        max_prompt_tokens=job.prompt,
        max_response_tokens=job.response,
        max_concurrent_sequences=job.rows,
        engine=TrainingEngineType.FSDP,
    )


def _role(model: BenchModel, job: Job) -> RoleModel:
    # Samples of a prompt share its tokens in one packed sequence.
    group_tokens = job.prompt + job.samples * job.response
    shared = min(group_tokens, MAX_SHARED_TOKENS, job.micro_batch) if job.samples > 1 else 0
    return RoleModel(
        role="actor",
        mesh=Mesh(pool="cpu", data=job.ranks),
        device=Device.CPU,
        head=ModelHead.LM,
        is_trained=True,
        generates=True,
        shape=model.shape,
        precision=Precision.FLOAT32,
        micro_batch_tokens=job.micro_batch,
        peak_tokens=job.micro_batch,
        batch_tokens=job.rows * (job.prompt + job.response),
        longest_shared_tokens=shared,
        is_saved=True,
        recompute=job.recompute,
        engine=TrainingEngineType.FSDP,
        sequence_parallel=False,
        distributed_optimizer=False,
    )
