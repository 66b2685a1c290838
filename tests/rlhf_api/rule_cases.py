"""What the API server has to refuse, and in which words, as a table for any API server.

Changes are texts as `--set` takes them, applied to GOOD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GOOD: dict[str, Any] = {
    "apiVersion": "rlhf-operator.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "job"},
    "spec": {
        "algorithm": {"type": "PPO"},
        "models": {"actor": {"source": {"path": "/m"}}},
        "data": {"train": {"path": "/d.parquet"}},
        "rewards": [{"function": {"entrypoint": "a:b"}}],
        "schedule": {"steps": 10, "promptsPerStep": 4},
        "resources": {"nodePools": [{"name": "a", "nodes": 2, "devicesPerNode": 4}]},
    },
}
"""A good manifest."""

SHAPE = (
    "{numLayers: 1, hiddenSize: 8, intermediateSize: 8, numAttentionHeads: 6, "
    "numKeyValueHeads: %d, headDim: 8, vocabSize: 8}"
)
TRAINING = "spec.models.actor.training={engine: Megatron, parallelism: {tensor: %d, pipeline: %d}}"
TEXTS = "spec.data.pretraining="
CUSTOM = "spec.algorithm={type: Custom, custom: {entrypoint: 'mine:Mine'}}"
GRAPH = (
    "{version: 1, codeDigest: 0123456789abcdef, settingsDigest: abcdef0123456789, "
    "roles: [{name: student, kind: LanguageModel}], calls: [{id: student.train, role: student, "
    "method: train, reads: [prompt_tokens, response_tokens], "
    "sources: [{source: prompts, fields: [prompt_tokens, response_tokens]}], "
    "rows: {expected: 1, most: 1}, "
    "train: {loss: {type: CrossEntropy, settings: {weight: 0.5}}}}]}"
)
"""Of a step that trains on answers."""
SAFE = "spec.algorithm={type: SafeRLHF, safeRLHF: "
"""What settings follow, and a closing brace."""
COST = (
    "spec.rewards=[{function: {entrypoint: 'a:b'}}, "
    "{name: harm, role: cost, function: {entrypoint: 'a:c'}}]"
)
PAIRS = "spec.data.train.preferences={}"
SAMPLES = ("spec.rollout.samplesPerPrompt=2",)
OTHERS = {
    "GRPO": "grpo",
    "DAPO": "dapo",
    "RLOO": "rloo",
    "OPO": "opo",
    "REINFORCEPlusPlus": "reinforcePlusPlus",
    "ReMax": "reMax",
    "SafeRLHF": "safeRLHF",
    "DPO": "dpo",
    "OnlineDPO": "onlineDPO",
    "SFT": "sft",
    "RewardModel": "rewardModel",
}
"""Built-in algorithms but PPO, with the fields of their settings."""
TWO_POOLS = "spec.resources.nodePools=[{name: a}, {name: b}]"
TWO_GPU_POOLS = "spec.resources.nodePools=[{name: a, gpu: H100}, {name: b, gpu: L40S}]"
GROUPS = "spec.placement={type: Manual, groups: "
"""What groups follow, and a closing brace."""
UNMEASURED = "spec.rewards=[{name: judge, http: {url: 'http://judge/score'}}]"
"""Nothing that may measure exact match."""
EARLY_STOP = "spec.schedule={steps: 10, promptsPerStep: 4, earlyStop: {patience: 2}"
"""What other fields of the schedule follow, and a closing brace."""
HEADERS = "spec.rewards=[{http: {url: 'http://judge/score', headers: "
"""A list of headers and }}] follow."""
SERVER = "spec.rollout.environment={servers: {web: "
"""A server of tools and }} follow."""
JUDGE = "spec.rewards=[{judge: {url: 'http://judge/v1', model: m, "
"""A prompt and }}] follow."""
SOURCES = "spec.data.train={sources: [{name: sums, path: /s}, {name: code, path: /c}]}"
BEST_MODEL = "spec.checkpoint.finalModel=Best"
HELD_OUT = "spec.data.evaluation.path=/e.jsonl"


@dataclass(frozen=True)
class Case:
    """A manifest that is refused when it is created."""

    changes: tuple[str, ...]
    """From the good manifest to this one."""
    field: str
    """The field that is blamed."""
    says: str
    """Words of the message."""


CREATED: dict[str, Case] = {
    "a penalty in the loss without a gradient": Case(
        ("spec.algorithm.ppo={klPlacement: Loss, klEstimator: K1}",),
        "spec.algorithm.ppo.klEstimator",
        "got K1, allowed K2, K3 or K3Corrected; choose one, or write klPlacement: Reward",
    ),
    "a corrected penalty in rewards": Case(
        ("spec.algorithm.ppo={klPlacement: Reward, klEstimator: K3Corrected}",),
        "spec.algorithm.ppo.klEstimator",
        "got K3Corrected, allowed K1, K2 or K3; write K3, or klPlacement: Loss",
    ),
    "a long name": Case(
        (f"metadata.name={'a' * 41}",),
        "metadata.name",
        f"got {'a' * 41}, allowed a text of 1 to 40",
    ),
    "a name with a digit first": Case(
        ("metadata.name=8b",), "metadata.name", "got 8b, allowed a text of 1 to 40 characters"
    ),
    # inside one section
    "settings of another algorithm": Case(
        ("spec.algorithm.grpo={}",), "spec.algorithm.grpo", "got grpo with type PPO; remove grpo"
    ),
    "settings of ppo": Case(
        ("spec.algorithm={type: GRPO, ppo: {}}", "spec.rollout.samplesPerPrompt=2"),
        *("spec.algorithm.ppo", "got ppo with type GRPO"),
    ),
    "settings of a custom algorithm": Case(
        ("spec.algorithm.custom={entrypoint: 'a:B'}",),
        *("spec.algorithm.custom", "got custom with type PPO"),
    ),
    "a graph of a preset": Case(
        (f"spec.algorithm.graph={GRAPH}",),
        *("spec.algorithm.graph", "got graph with type PPO; remove graph or change type"),
    ),
    "custom without entry point": Case(
        ("spec.algorithm.type=Custom",), "spec.algorithm.custom", "add custom: {entrypoint:"
    ),
    "no source": Case(
        ("spec.models.actor.source={}",),
        *("spec.models[actor].source", "huggingFace, path, builtin, sameAs is needed: got none"),
    ),
    "two sources": Case(
        ("spec.models.actor.source.builtin=TinyLlama",),
        *("spec.models[actor].source", "got path and builtin; set one of them"),
    ),
    "a revision of a folder": Case(
        ("spec.models.actor.source.revision=main",),
        *("spec.models[actor].source.revision", "revision without huggingFace"),
    ),
    "heads that do not divide": Case(
        (f"spec.models.actor.shape={SHAPE % 4}",),
        *("spec.models[actor].shape", "the query heads are no multiple"),
    ),
    "heads cut unevenly": Case(
        (f"spec.models.actor.shape={SHAPE % 6}", "spec.rollout.parallelism.tensor=4"),
        *("spec.rollout.parallelism.tensor", "a divisor of models.actor.shape.numAttentionHeads"),
    ),
    "a cut under FSDP": Case(
        ("spec.models.actor.training.parallelism.pipeline=2",),
        "spec.models[actor].training.parallelism",
        "allowed 1 with engine FSDP; write engine: Megatron",
    ),
    "an optimizer of one's own under FSDP": Case(
        ("spec.models.critic={source: {sameAs: actor}, training: {distributedOptimizer: false}}",),
        "spec.models[critic].training.distributedOptimizer",
        "allowed true with engine FSDP; write engine: Megatron",
    ),
    "weights that follow from others under FSDP": Case(
        ("spec.models.actor.training.offload=Derived",),
        "spec.models[actor].training.offload",
        "allowed Auto, Always or Never with engine FSDP; write engine: Megatron",
    ),
    "query heads that tensor ranks cannot share": Case(
        (f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (4, 1)),
        "spec.models[actor].training.parallelism.tensor",
        "allowed a divisor of numAttentionHeads, numKeyValueHeads and intermediateSize",
    ),
    "key heads that tensor ranks cannot share": Case(
        (f"spec.models.actor.shape={SHAPE % 3}", TRAINING % (2, 1)),
        *("spec.models[actor].training.parallelism.tensor", "a divisor of numAttentionHeads"),
    ),
    "columns that tensor ranks cannot share": Case(
        (f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (3, 1)),
        *("spec.models[actor].training.parallelism.tensor", "a divisor of numAttentionHeads"),
    ),
    "layers that stages cannot share": Case(
        (f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (1, 2)),
        *("spec.models[actor].training.parallelism.pipeline", "allowed a divisor of numLayers"),
    ),
    "a model on more devices than a pool has": Case(
        (TRAINING % (4, 3), "spec.placement.type=Split")
        + ("spec.resources.nodePools=[{name: a, devicesPerNode: 4}, {name: b}]",),
        "spec.models",
        "allowed at most nodes x devicesPerNode for tensor x pipeline; lower tensor or pipeline",
    ),
    "a role that is no name": Case(
        ("spec.algorithm={type: Custom, custom: {entrypoint: 'a:B'}}",)
        + ("spec.models.9b.source.sameAs=actor",),
        *("spec.models", "letters, digits and underscores, not a digit first"),
    ),
    "two origins of data": Case(
        ("spec.data.train.huggingFace=a/b",), "spec.data.train", "got path and huggingFace"
    ),
    "a path beside paths": Case(
        ("spec.data.train={path: /a.jsonl, paths: [/b.jsonl]}",),
        *("spec.data.train", "got path and paths"),
    ),
    "evaluation without data": Case(
        ("spec.data.evaluation={}",),
        *(
            "spec.data.evaluation",
            "path, paths, huggingFace, builtin, reasoningGym, sources is needed",
        ),
    ),
    "a split of a file": Case(
        ("spec.data.train.split=test",), "spec.data.train.split", "split is for huggingFace data"
    ),
    "a configuration of a file": Case(
        ("spec.data.train.configuration=main",),
        *("spec.data.train.configuration", "configuration is for huggingFace data only; remove it"),
    ),
    "a variable with two values": Case(
        ("spec.env=[{name: A, value: b, valueFrom: {secretKeyRef: {name: s, key: k}}}]",),
        *("spec.env[0].valueFrom", "value together with valueFrom; remove value or valueFrom"),
    ),
    "a variable from nowhere": Case(
        ("spec.env=[{name: A, valueFrom: {}}]",),
        *("spec.env[0].valueFrom", "exactly one of secretKeyRef, configMapKeyRef is needed"),
    ),
    "a password in an address": Case(
        ("spec.code.git={url: 'https://me:secret@git.example.com/r.git', revision: main}",),
        *("spec.code.git.url", "credentials in an address"),
    ),
    "a token in an address": Case(
        ("spec.code.git={url: 'https://secret@git.example.com/r.git', revision: main}",),
        *("spec.code.git.url", "remove them, and name a Secret in secretName"),
    ),
    "sources beside a path": Case(
        ("spec.data.train={path: /a.jsonl, sources: [{path: /b.jsonl}]}",),
        *("spec.data.train", "builtin, reasoningGym, sources is needed"),
    ),
    "a source of two kinds": Case(
        ("spec.data.train={sources: [{path: /a.jsonl, builtin: SortDigits}]}",),
        *(
            "spec.data.train.sources[0]",
            "path, paths, huggingFace, builtin, reasoningGym is needed",
        ),
    ),
    "sources of one name": Case(
        ("spec.data.train={sources: [{path: /a, name: a}, {path: /b}, {path: /c, name: a}]}",),
        *("spec.data.train.sources", "several sources have the same name"),
    ),
    "held-out sources of one name": Case(
        ("spec.data.evaluation={sources: [{path: /a, name: a}, {path: /b, name: a}]}",),
        *("spec.data.evaluation.sources", "several sources have the same name"),
    ),
    "a number of rows beside sources": Case(
        ("spec.data.train={sources: [{path: /a.jsonl}], maxRows: 9}",),
        *("spec.data.train.maxRows", "set maxRows in the sources"),
    ),
    "a source of answers beside pairs": Case(
        (
            "spec.algorithm={type: DPO}",
            "spec.data.train={sources: [{path: /a, answerField: b}], preferences: {}}",
            "spec.rewards=[]",
        ),
        *("spec.data.train.sources", "answerField together with preferences"),
    ),
    "a source without the answers of others": Case(
        (
            "spec.algorithm={type: SFT}",
            "spec.data.train={sources: [{path: /a, answerField: b}, {path: /c}]}",
            "spec.rewards=[]",
        ),
        *("spec.data.train.answerField", "the algorithm takes reference answers"),
    ),
    "all answers of conversations for ppo": Case(
        ("spec.data.train.trainOn=AllAnswers",),
        *("spec.data.train.trainOn", "trains on responses that it generates"),
    ),
    "all answers of a source for online DPO": Case(
        (
            *("spec.algorithm={type: OnlineDPO}", "spec.rollout.samplesPerPrompt=2"),
            "spec.data.train={sources: [{path: /a}, {path: /b, trainOn: AllAnswers}]}",
        ),
        *("spec.data.train.trainOn", "trains on responses that it generates"),
    ),
    "prompt fields of sources whose pairs are saved": Case(
        (
            "spec.algorithm={type: OnlineDPO, onlineDPO: {savePairs: true}}",
            "spec.data.train={sources: [{path: /a, promptField: b}]}",
            "spec.rollout.samplesPerPrompt=2",
        ),
        *("spec.data.train.sources", "saved pairs take the prompt from one column"),
    ),
    "an adaptive coefficient of nothing": Case(
        ("spec.algorithm={type: PPO, ppo: {adaptiveKl: {target: 6}}}",),
        *("spec.algorithm.ppo.adaptiveKl", "without a KL penalty on rewards"),
    ),
    "an adaptive coefficient in the loss": Case(
        (
            "spec.algorithm={type: GRPO, grpo: {klCoefficient: 0.1, adaptiveKl: {target: 6}}}",
            "spec.rollout.samplesPerPrompt=2",
        ),
        *("spec.algorithm.grpo.adaptiveKl", "allowed klCoefficient above 0"),
    ),
    "generated tasks that fill no step": Case(
        ("spec.data.train={reasoningGym: {dataset: chain_sum, size: 3}}",),
        *("spec.data.train.reasoningGym.size", "at least schedule.promptsPerStep"),
    ),
    "generated tasks beside a path": Case(
        ("spec.data.train={path: /a.jsonl, reasoningGym: {dataset: chain_sum}}",),
        *("spec.data.train", "got path and reasoningGym"),
    ),
    "a split of generated tasks": Case(
        ("spec.data.train={reasoningGym: {dataset: chain_sum}, split: test}",),
        *("spec.data.train.split", "split is for huggingFace data"),
    ),
    "texts of generated tasks": Case(
        (f"{TEXTS}{{reasoningGym: {{dataset: chain_sum}}, textField: body}}",),
        *("spec.data.pretraining.reasoningGym", "reasoningGym together with textField"),
    ),
    "a split of a builtin task": Case(
        ("spec.data.train={builtin: SortDigits, split: test}",),
        *("spec.data.train.split", "split is for huggingFace data"),
    ),
    "an evaluation's split of a file": Case(
        ("spec.data.evaluation={path: /e.jsonl, split: test}",),
        *("spec.data.evaluation.split", "split is for huggingFace data"),
    ),
    "an evaluation's configuration of a file": Case(
        ("spec.data.evaluation={path: /e.jsonl, configuration: main}",),
        *("spec.data.evaluation.configuration", "configuration is for huggingFace data"),
    ),
    "a large mini-batch": Case(
        ("spec.schedule.miniBatchPrompts=5",),
        *("spec.schedule.miniBatchPrompts", "allowed at most promptsPerStep"),
    ),
    "two storages": Case(
        ("spec.checkpoint.storage={uri: 's3://b', persistentVolumeClaim: {claimName: c}}",),
        *("spec.checkpoint.storage", "got persistentVolumeClaim and uri"),
    ),
    "code from nowhere": Case(
        ("spec.code={}",),
        *("spec.code", "one of local, configMap, git, requirements is needed; set one of them"),
    ),
    "code without a requirement": Case(
        ("spec.code={requirements: []}",),
        *("spec.code", "one of local, configMap, git, requirements is needed; set one of them"),
    ),
    "code from two sources": Case(
        ("spec.code={configMap: {name: a}, git: {url: 'https://a.example/r', revision: main}}",),
        *("spec.code", "at most one of local, configMap, git is possible: got configMap and git"),
    ),
    "a failure rule for anything": Case(
        ("spec.failurePolicy.rules=[{action: Fail}]",),
        *("spec.failurePolicy.rules[0]", "onReason, onExitCodes is needed: got none"),
    ),
    "a reward from nowhere": Case(
        ("spec.rewards=[{name: a}]",),
        *("spec.rewards[0]", "exactly one of function, http, judge, model, environment is needed"),
    ),
    "a reward model from nowhere": Case(
        ("spec.rewards=[{model: {}}]",),
        *("spec.rewards[0].model", "exactly one of huggingFace, path is needed: got none"),
    ),
    "a revision of a reward model's folder": Case(
        ("spec.rewards=[{model: {path: /rm, revision: main}}]",),
        *("spec.rewards[0].model.revision", "revision without huggingFace"),
    ),
    "a reward model in the place of a role": Case(
        ("spec.rewards=[{name: style, model: {path: /rm}}]",)
        + ("spec.algorithm={type: Custom, custom: {entrypoint: 'a:B'}}",)
        + ("spec.models.style_model.source.path=/m",),
        *("spec.rewards", "an entry of models are the same role"),
    ),
    "a reward of two kinds": Case(
        ("spec.rewards[0].http={url: 'http://rewards/score'}",),
        *("spec.rewards[0]", "got function and http; set one of them"),
    ),
    "a reward that poses as the sum": Case(
        ("spec.rewards[0].name=mean",), "spec.rewards[0].name", "got mean, allowed any other name"
    ),
    "a pool named as the head": Case(
        ("spec.resources.nodePools[0].name=head",),
        *("spec.resources.nodePools[0].name", "the cluster's own head group"),
    ),
    "a GPU of CPUs": Case(
        ("spec.resources.nodePools[0].device=CPU", "spec.resources.nodePools[0].gpu=H100"),
        *("spec.resources.nodePools[0].gpu", "got H100; remove it, or write device: GPU"),
    ),
    "two times to live": Case(
        ("spec.clusterTTLSeconds=60", "spec.ttlSecondsAfterFinished=30"),
        *("spec.ttlSecondsAfterFinished", "two times for which the cluster is kept"),
    ),
    "the resource of GPUs in a pool of CPUs": Case(
        (
            "spec.resources.nodePools[0].device=CPU",
            "spec.resources.nodePools[0].deviceResource=amd.com/gpu",
        ),
        "spec.resources.nodePools[0].deviceResource",
        "got amd.com/gpu; remove it, or write device: GPU",
    ),
    "a device faster in float32": Case(
        ("spec.resources.nodePools[0].hardware={bfloat16Teraflops: 50, float32Teraflops: 100}",),
        *(
            "spec.resources.nodePools[0].hardware.float32Teraflops",
            "faster in float32 than in bfloat16",
        ),
    ),
    "a memory in TB/s": Case(
        ("spec.resources.nodePools[0].hardware.memoryGigabytesPerSecond=3.35",),
        "spec.resources.nodePools[0].hardware.memoryGigabytesPerSecond",
        "allowed at least 50 GB/s; write GB/s, 1000 for each TB/s",
    ),
    "a label without name": Case(
        ('spec.resources.nodePools[0].nodeSelector={"": x}',),
        *("spec.resources.nodePools[0].nodeSelector", "a text of 1 to 1024 characters"),
    ),
    "an annotation without name": Case(
        ('spec.resources.nodePools[0].annotations={"": x}',),
        *("spec.resources.nodePools[0].annotations", "a key that is not allowed here"),
    ),
    # between sections
    "no actor": Case(
        ("spec.models={critic: {source: {path: /m}}}",),
        *("spec.models", "main model is missing; add models.actor"),
    ),
    "an actor from another role": Case(
        ("spec.models.actor.source={sameAs: critic}", "spec.models.critic.source.path=/m"),
        *("spec.models", "cannot take its weights from another role: got critic"),
    ),
    "weights of nobody": Case(
        ("spec.models.critic.source.sameAs=teacher",), "spec.models", "sameAs does not name another"
    ),
    "weights of itself": Case(
        ("spec.models.critic.source.sameAs=critic",), "spec.models", "sameAs does not name another"
    ),
    "weights at second hand": Case(
        ("spec.models.critic.source.sameAs=reference", "spec.models.reference.source.sameAs=actor"),
        *("spec.models", "sameAs does not name another role with a source of its own"),
    ),
    "a role that ppo does not have": Case(
        ("spec.models.judge.source.sameAs=actor",),
        *("spec.models", "the algorithm does not have; rename or remove it"),
    ),
    "a role that grpo does not have": Case(
        ("spec.models.critic.source.sameAs=actor", "spec.algorithm.type=GRPO")
        + ("spec.rollout.samplesPerPrompt=2",),
        *("spec.models", "the algorithm does not have; rename or remove it"),
    ),
    "no reward counts": Case(("spec.rewards[0].weight=0",), "spec.rewards", "all have weight 0"),
    "no reward": Case(
        ("spec.rewards=[]",),
        "spec.rewards",
        "the algorithm learns from rewards, and there are none",
    ),
    "pairs for ppo": Case(
        ("spec.data.train.preferences={}",),
        *("spec.data.train.preferences", "the algorithm takes prompts, not pairs"),
    ),
    "a warm start on pairs": Case(
        (CUSTOM, "spec.data.train.preferences={}", "spec.schedule.warmStart={}"),
        *("spec.schedule.warmStart", "and the data are pairs of responses; remove warmStart"),
    ),
    "answers beside pairs": Case(
        (CUSTOM, "spec.data.train.preferences={}", "spec.data.train.answerField=answer"),
        *("spec.data.train.answerField", "answerField together with preferences"),
    ),
    "answers beside whole texts": Case(
        (f"{TEXTS}{{path: /t, textField: body, answerField: answer}}",),
        *(
            "spec.data.pretraining.answerField",
            "together with textField, whose complete texts are trained on",
        ),
    ),
    "a system prompt for whole texts": Case(
        (f"{TEXTS}{{path: /t, systemPrompt: Be brief.}}",),
        *("spec.data.pretraining.systemPrompt", "a system prompt for complete texts"),
    ),
    "a chat template for whole texts": Case(
        (f"{TEXTS}{{path: /t, textField: body, chatTemplate: Always}}",),
        *("spec.data.pretraining.chatTemplate", "or name answers to prompts by answerField"),
    ),
    "arguments of a chat template for whole texts": Case(
        (f"{TEXTS}{{path: /t, textField: body, chatTemplateArgumentsField: variables}}",),
        *("spec.data.pretraining.chatTemplateArgumentsField", "together with textField"),
    ),
    "arguments of a chat template that is not used": Case(
        (
            "spec.data.train.chatTemplate=Never",
            "spec.data.train.chatTemplateArgumentsField=variables",
        ),
        *(
            "spec.data.train.chatTemplateArgumentsField",
            "arguments of a chat template that is not used",
        ),
    ),
    "texts of a builtin task": Case(
        (f"{TEXTS}{{builtin: SortDigits, textField: body}}",),
        *("spec.data.pretraining.builtin", "builtin together with textField"),
    ),
    "fewer texts than updates": Case(
        (
            f"{TEXTS}{{path: /t, rowsPerStep: 3}}",
            "spec.schedule.promptsPerStep=16",
            "spec.schedule.miniBatchPrompts=4",
        ),
        *("spec.data.pretraining.rowsPerStep", "fewer rows per step than its updates"),
    ),
    "a step of more texts than there are": Case(
        (f"{TEXTS}{{path: /t, maxRows: 8, rowsPerStep: 9}}",),
        *("spec.data.pretraining.rowsPerStep", "more rows per step than there are"),
    ),
    **{
        f"one sample of {algorithm}": Case(
            (f"spec.algorithm.type={algorithm}",),
            *("spec.rollout.samplesPerPrompt", "write samplesPerPrompt: 8"),
        )
        for algorithm in ("GRPO", "DAPO", "RLOO", "OPO", "OnlineDPO")
    },
    "one sample and its own mean": Case(
        ("spec.algorithm={type: REINFORCEPlusPlus, reinforcePlusPlus: {groupBaseline: true}}",),
        *("spec.rollout.samplesPerPrompt", "or remove groupBaseline"),
    ),
    "a dual clip of CISPO": Case(
        ("spec.algorithm.ppo={objective: CISPO, dualClip: 3}",),
        *("spec.algorithm.ppo.dualClip", "got CISPO, allowed Clipped"),
    ),
    "a mean number of rounds above the limit": Case(
        ("spec.algorithm={type: DAPO, dapo: {maxRounds: 2, expectedRounds: 3}}", *SAMPLES),
        *("spec.algorithm.dapo.expectedRounds", "allowed at most maxRounds"),
    ),
    "a multiplier above its largest": Case(
        (f"{SAFE}{{initialMultiplier: 3, maxMultiplier: 2}}}}", COST),
        *("spec.algorithm.safeRLHF.initialMultiplier", "allowed at most maxMultiplier"),
    ),
    "a cost without a reward": Case(
        ("spec.algorithm.type=SafeRLHF", "spec.rewards[0].role=cost"),
        *("spec.rewards", "allowed rewards of role reward and of role cost"),
    ),
    "ptx without rows": Case(
        (f"{SAFE}{{pretrainingWeight: 0.1}}}}", COST),
        *("spec.algorithm.safeRLHF.pretrainingWeight", "add data.pretraining"),
    ),
    "pass@k of more than there are": Case(
        ("spec.data.evaluation={path: /e, samplesPerPrompt: 4, passAtK: [1, 8]}",),
        *("spec.data.evaluation.passAtK", "allowed at most samplesPerPrompt"),
    ),
    "labels that are mostly wrong": Case(
        ("spec.algorithm={type: DPO, dpo: {labelSmoothing: 0.5}}", PAIRS),
        *("spec.algorithm.dpo.labelSmoothing", "allowed less than 0.5"),
    ),
    "prompts for DPO": Case(
        ("spec.algorithm.type=DPO",),
        *("spec.data.train.preferences", "add preferences with chosenField"),
    ),
    "prompts for SFT": Case(
        ("spec.algorithm.type=SFT",),
        *("spec.data.train.answerField", "name their column by answerField"),
    ),
    **{
        f"settings of {kind} for PPO": Case(
            (f"spec.algorithm.{field}={{}}",),
            *(f"spec.algorithm.{field}", f"got {field} with type PPO"),
        )
        for kind, field in OTHERS.items()
    },
    "a critic's warm-up to the end": Case(
        ("spec.algorithm.ppo.criticWarmupSteps=10",),
        *("spec.algorithm.ppo.criticWarmupSteps", "allowed less than schedule.steps"),
    ),
    "critics' warm-up to the end": Case(
        (f"{SAFE}{{criticWarmupSteps: 10}}}}", COST),
        *("spec.algorithm.safeRLHF.criticWarmupSteps", "allowed less than schedule.steps"),
    ),
    "nothing to measure": Case(
        ("spec.schedule.warmStart.stopAtExactMatch=0.5",),
        *("spec.schedule.warmStart.stopAtExactMatch", "add data.evaluation"),
    ),
    "nothing that measures": Case(
        (
            "spec.schedule.warmStart.stopAtExactMatch=0.5",
            "spec.data.evaluation.path=/e.jsonl",
            UNMEASURED,
        ),
        *("spec.schedule.warmStart.stopAtExactMatch", "by a function, and no reward has one"),
    ),
    "a metric that nobody measures": Case(
        ("spec.checkpoint.keepBest=ExactMatch", UNMEASURED),
        *("spec.checkpoint.keepBest", "by a function, and no reward has one"),
    ),
    "an early stop without evaluations between steps": Case(
        (f"{EARLY_STOP}, evaluateEverySteps: 0}}", HELD_OUT),
        *("spec.schedule.evaluateEverySteps", "allowed evaluateEverySteps of at least 1"),
    ),
    "an early stop without held-out prompts": Case(
        (f"{EARLY_STOP}}}",), "spec.schedule.earlyStop", "add data.evaluation"
    ),
    "an early stop by a builtin task without rewards": Case(
        (
            *("spec.algorithm.type=SFT", "spec.rewards=[]", "spec.checkpoint.keepBest=LengthMean"),
            *("spec.data.train={builtin: SortDigits}", f"{EARLY_STOP}}}"),
        ),
        *("spec.schedule.earlyStop", "add data.evaluation"),
    ),
    "an early stop by no metric": Case(
        (f"{EARLY_STOP}}}", HELD_OUT, "spec.checkpoint.keepBest=None"),
        *("spec.checkpoint.keepBest", "RewardMean, LengthMean or ExactMatch; choose one"),
    ),
    "an early stop by rewards that do not exist": Case(
        (
            *("spec.algorithm.type=SFT", "spec.rewards=[]", HELD_OUT, f"{EARLY_STOP}}}"),
            "spec.data.train={path: /d, answerField: answer}",
        ),
        *("spec.checkpoint.keepBest", "add a reward, choose another metric"),
    ),
    "the best model without held-out prompts": Case(
        (BEST_MODEL,), "spec.checkpoint.finalModel", "add data.evaluation"
    ),
    "the best model by no metric": Case(
        (BEST_MODEL, HELD_OUT, "spec.checkpoint.keepBest=None"),
        *("spec.checkpoint.keepBest", "RewardMean, LengthMean or ExactMatch; choose one"),
    ),
    "the best model by rewards that do not exist": Case(
        (
            *("spec.algorithm.type=SFT", "spec.rewards=[]", HELD_OUT, BEST_MODEL),
            "spec.data.train={path: /d, answerField: answer}",
        ),
        *("spec.checkpoint.keepBest", "add a reward, choose another metric"),
    ),
    "a header that a request sets itself": Case(
        (f"{HEADERS}[{{name: Content-type, value: a}}]}}}}]",),
        *("spec.rewards[0].http.headers[0].name", "got Content-type, allowed any other"),
    ),
    "two headers of one name": Case(
        (f"{HEADERS}[{{name: X-a, value: a}}, {{name: x-A, value: b}}]}}}}]",),
        *("spec.rewards[0].http.headers", "every name once"),
    ),
    "a header of two values": Case(
        (f"{HEADERS}[{{name: X-a, value: a, valueFromEnv: A}}]}}}}]",),
        *("spec.rewards[0].http.headers[0]", "valueFromEnv"),
    ),
    "a judge who does not see the response": Case(
        (f"{JUDGE}prompt: 'Grade it.'}}}}]",),
        *("spec.rewards[0].judge.prompt", "allowed a text with {response}"),
    ),
    "a judge without grades": Case(
        (f"{JUDGE}prompt: '{{response}}', scale: {{lowest: 10}}}}}}]",),
        *("spec.rewards[0].judge.scale.highest", "lowest below highest"),
    ),
    "a reward for a source that does not exist": Case(
        (SOURCES, "spec.rewards=[{function: {entrypoint: 'a:b'}, sources: [sums, codes]}]"),
        *("spec.rewards", "correct the name, or give a source in data this name"),
    ),
    "a reward model for some rows": Case(
        ("spec.rewards=[{model: {path: /m}, where: {field: task, values: [a]}}]",),
        *("spec.rewards[0].model", "where and sources beside function, http or judge"),
    ),
    "few rows": Case(
        ("spec.data.train.maxRows=3",),
        "spec.data.train.maxRows",
        "at least schedule.promptsPerStep",
    ),
    "prompts that are longer on average than at most": Case(
        ("spec.rollout={maxPromptTokens: 10, expectedPromptTokens: 11}",),
        *("spec.rollout.expectedPromptTokens", "at most maxPromptTokens"),
    ),
    "responses that are longer on average than at most": Case(
        ("spec.rollout.expectedResponseTokens=1025",),
        *("spec.rollout.expectedResponseTokens", "at most maxResponseTokens"),
    ),
    "more tokens of responses that are cut off than of all": Case(
        ("spec.rollout={expectedTruncated: 0.25, expectedResponseTokens: 256}",),
        *("spec.rollout.expectedTruncated", "less than the mean length / "),
    ),
    "half of the responses cut off at twice the mean": Case(
        ("spec.rollout.expectedTruncated=0.5",),
        *("spec.rollout.expectedTruncated", "less than the mean length / "),
    ),
    "deadlines in the wrong order": Case(
        ("spec.startDeadlineSeconds=61", "spec.activeDeadlineSeconds=60"),
        *("spec.startDeadlineSeconds", "at most activeDeadlineSeconds"),
    ),
    "too many devices": Case(
        ("spec.placement.maxDevices=9",),
        *("spec.placement.maxDevices", "more devices than the node pools have"),
    ),
    "groups without a group": Case(
        ("spec.placement.type=Manual",),
        *("spec.placement.groups", "add one for every set of roles that share devices"),
    ),
    "groups of roles that are all together": Case(
        ("spec.placement={type: Colocated, groups: [{roles: [actor, critic]}]}",),
        *("spec.placement.groups", "got Colocated, allowed Manual; write type: Manual"),
    ),
    "a limit beside groups": Case(
        (f"{GROUPS}[{{roles: [actor, critic]}}], maxDevices: 4}}",),
        *("spec.placement.maxDevices", "a limit on devices, with groups that name theirs"),
    ),
    "a role in two groups": Case(
        (f"{GROUPS}[{{roles: [actor, critic]}}, {{roles: [actor], firstDevice: 4}}]}}",),
        *("spec.placement.groups", "a role twice among the groups, for the same calls"),
    ),
    "a role twice in a group": Case(
        (f"{GROUPS}[{{roles: [actor, critic, critic]}}]}}",),
        *("spec.placement.groups", "a role twice among the groups"),
    ),
    "a role that generates in two groups": Case(
        (
            f"{GROUPS}[{{roles: [actor, critic]}}, {{roles: [actor], calls: [Generate, Train]}}, "
            "{roles: [actor], calls: [Generate], devices: 4}]}",
        ),
        *("spec.placement.groups", "or give the groups different calls of it"),
    ),
    "calls twice in a group": Case(
        (f"{GROUPS}[{{roles: [actor, critic], calls: [Train, Infer, Train]}}]}}",),
        *("spec.placement.groups[0].calls", "a kind of calls twice in a group; name it once"),
    ),
    "stages of generation": Case(
        (f"{GROUPS}[{{roles: [actor], calls: [Generate], pipeline: 2}}]}}",),
        *("spec.placement.groups[0].pipeline", "pipeline stages of generation, which has none"),
    ),
    "a group in a pool that is not there": Case(
        (f"{GROUPS}[{{roles: [actor, critic], pool: b}}]}}",),
        *("spec.placement.groups", "allowed a name of resources.nodePools; correct it, or add"),
    ),
    "a group in any of two pools": Case(
        (TWO_POOLS, f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [critic]}}]}}"),
        *("spec.placement.groups", "a group without a pool, and the job has several: allowed the"),
    ),
    "a group in any of a chart's pools": Case(
        (
            "spec.resources={}",
            f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [x], pool: b}}, {{roles: [y]}}]}}",
        ),
        *("spec.placement.groups", "a group without a pool, and the job has several: allowed the"),
    ),
    "a group of more devices than there are": Case(
        (f"{GROUPS}[{{roles: [actor, critic], firstDevice: 2, devices: 7}}]}}",),
        *("spec.placement.groups", "a group with more devices than its pool has: allowed"),
    ),
    "a group behind the devices of its pool": Case(
        (TWO_POOLS, f"{GROUPS}[{{roles: [actor, critic], pool: b, firstDevice: 8}}]}}"),
        *("spec.placement.groups", "lower firstDevice or devices, or add nodes"),
    ),
    "two pools for all roles": Case(
        (TWO_POOLS,),
        *("spec.placement.type", "several pools, and nothing assigns roles to them"),
    ),
    "groups beside a split": Case(
        ("spec.placement={type: Split, groups: [{roles: [actor, critic]}]}",),
        *("spec.placement.groups", "got Split, allowed Manual; write type: Manual"),
    ),
    "two pools for all roles, on all devices": Case(
        (TWO_GPU_POOLS, "spec.placement={type: Colocated}"),
        *("spec.placement.type", "several pools, and nothing assigns roles to them"),
    ),
    "a limit of several pools": Case(
        (TWO_POOLS, "spec.placement={type: Standalone, maxDevices: 2}"),
        *("spec.placement.maxDevices", "give the pools fewer nodes"),
    ),
    "a limit of several pools that the planner shares out": Case(
        (TWO_GPU_POOLS, "spec.placement={maxDevices: 2}"),
        *("spec.placement.maxDevices", "give the pools fewer nodes"),
    ),
    "a treatment of cut off responses where SFT generates none": Case(
        (
            *("spec.algorithm.type=SFT", "spec.data.train={path: /d, answerField: answer}"),
            "spec.rollout.onStop.TokenLimit=Mask",
        ),
        *("spec.rollout.onStop", "allowed an algorithm that generates responses; remove onStop"),
    ),
    "a treatment of cut off responses where DPO generates none": Case(
        ("spec.algorithm.type=DPO", PAIRS, "spec.rollout.onStop.TokenLimit=LeaveOut"),
        *("spec.rollout.onStop", "allowed an algorithm that generates responses; remove onStop"),
    ),
    "a treatment of cut off responses where RewardModel generates none": Case(
        (
            *("spec.algorithm.type=RewardModel", PAIRS, "spec.rewards=[]"),
            *("spec.models={reward_model: {source: {path: /m}}}",),
            "spec.rollout.onStop.TokenLimit=Mask",
        ),
        *("spec.rollout.onStop", "allowed an algorithm that generates responses; remove onStop"),
    ),
    "a nucleus where SFT samples nothing": Case(
        (
            *("spec.algorithm.type=SFT", "spec.data.train={path: /d, answerField: answer}"),
            "spec.rollout.topP=0.9",
        ),
        *("spec.rollout", "allowed topP, topK and minP with other types"),
    ),
    "the best tokens where DPO samples nothing": Case(
        ("spec.algorithm.type=DPO", PAIRS, "spec.rollout.topK=5"),
        *("spec.rollout", "allowed topP, topK and minP with other types"),
    ),
    "likely tokens where DPO samples nothing": Case(
        ("spec.algorithm.type=DPO", PAIRS, "spec.rollout.minP=0.1"),
        *("spec.rollout", "allowed topP, topK and minP with other types"),
    ),
    "truncated sampling of greedy answers": Case(
        ("spec.data.evaluation={path: /e, topP: 0.9}",),
        *("spec.data.evaluation.temperature", "write temperature: 1, or remove topP, topK and"),
    ),
    "a masked response of a pair": Case(
        (
            "spec.algorithm.type=OnlineDPO",
            "spec.rollout={samplesPerPrompt: 2, onStop: {TokenLimit: Mask}}",
        ),
        *("spec.rollout.onStop", "allowed Train, LeaveOut; write LeaveOut"),
    ),
    "a context limit of answers": Case(
        (
            *("spec.algorithm.type=SFT", "spec.data.train={path: /d, answerField: answer}"),
            "spec.rollout.onStop.ContextLimit=Mask",
        ),
        *("spec.rollout.onStop", "allowed an algorithm that generates responses; remove onStop"),
    ),
    "an end token of answers": Case(
        (
            *("spec.algorithm.type=SFT", "spec.data.train={path: /d, answerField: answer}"),
            "spec.rollout.onStop.EndToken=LeaveOut",
        ),
        *("spec.rollout.onStop", "allowed an algorithm that generates responses; remove onStop"),
    ),
    "a masked response of a pair that ended by itself": Case(
        (
            "spec.algorithm.type=OnlineDPO",
            "spec.rollout={samplesPerPrompt: 2, onStop: {EndToken: Mask}}",
        ),
        *("spec.rollout.onStop", "allowed Train, LeaveOut; write LeaveOut"),
    ),
    "a masked response of a pair with a stop text": Case(
        (
            "spec.algorithm.type=OnlineDPO",
            "spec.rollout={samplesPerPrompt: 2, stop: ['.'], onStop: {StopText: Mask}}",
        ),
        *("spec.rollout.onStop", "allowed Train, LeaveOut; write LeaveOut"),
    ),
    "a masked response of a pair where the context is full": Case(
        (
            "spec.algorithm.type=OnlineDPO",
            "spec.rollout={samplesPerPrompt: 2, onStop: {ContextLimit: Mask}}",
        ),
        *("spec.rollout.onStop", "allowed Train, LeaveOut; write LeaveOut"),
    ),
    "a treatment of stop texts without one": Case(
        ("spec.rollout.onStop.StopText=Mask",),
        *("spec.rollout.onStop.StopText", "got Mask, allowed Train without stop; list the texts"),
    ),
    "no stop reason that is trained on": Case(
        ("spec.rollout.onStop={EndToken: Mask, TokenLimit: LeaveOut}",),
        *("spec.rollout.onStop.EndToken", "got Mask, allowed Train for one reason at least"),
    ),
    "a fewest number of samples where none is left out": Case(
        ("spec.rollout={samplesPerPrompt: 4, minValidSamples: 2}",),
        *("spec.rollout.minValidSamples", "allowed minValidSamples with LeaveOut in onStop"),
    ),
    "a fewest number above the number of samples": Case(
        ("spec.rollout={samplesPerPrompt: 2, minValidSamples: 4, onStop: {TokenLimit: LeaveOut}}",),
        *("spec.rollout.minValidSamples", "allowed at most samplesPerPrompt"),
    ),
    "an environment without tools": Case(
        ("spec.rollout.environment={parameters: {digits: 2}}",),
        *("spec.rollout.environment", "allowed entrypoint, classes, tools or servers; name a cl"),
    ),
    "a server of tools without an address": Case(
        (f"{SERVER}{{tools: [look]}}}}}}",),
        *("spec.rollout.environment.servers[web]", "exactly one of command, url is needed"),
    ),
    "a header for a server that is no address": Case(
        (f"{SERVER}{{command: [serve], header: {{name: A, valueFromEnv: TOKEN}}}}}}}}",),
        *("spec.rollout.environment.servers[web].header", "allowed header with url; remove it"),
    ),
    "a header that a request to a server of tools sets itself": Case(
        (f"{SERVER}{{url: 'http://a/mcp', header: {{name: Host, valueFromEnv: TOKEN}}}}}}}}",),
        *("spec.rollout.environment.servers[web].header.name", "got Host, allowed any other"),
    ),
    "one class for all rows, and classes by name": Case(
        ("spec.rollout.environment={entrypoint: 'a:B', classes: {c: 'a:C'}}",),
        *("spec.rollout.environment.classes", "allowed entrypoint or classes; remove one of them"),
    ),
    "more turns on average than at most": Case(
        ("spec.rollout.environment={tools: ['a:b'], expectedTurns: 2.5, limits: {turns: 2}}",),
        *("spec.rollout.environment.expectedTurns", "allowed at most limits.turns"),
    ),
    "calls of a turn that take longer on average than at most": Case(
        ("spec.rollout.environment={tools: ['a:b'], expectedToolSeconds: 60.5}",),
        *("spec.rollout.environment.expectedToolSeconds", "allowed at most limits.turnSeconds"),
    ),
    "a treatment of conversations without an environment": Case(
        ("spec.rollout.onStop.TurnLimit=Mask",),
        *("spec.rollout.onStop", "remove it, or write environment"),
    ),
    "rewards of turns that pairs do not use": Case(
        (
            "spec.algorithm.type=OnlineDPO",
            "spec.rollout={samplesPerPrompt: 2, environment: {tools: ['a:b'], turnCredit: {}}}",
        ),
        *("spec.rollout.environment.turnCredit", "got OnlineDPO, allowed an algorithm of the pro"),
    ),
    "stage fusion of conversations": Case(
        ("spec.rollout={stageFusion: Always, environment: {tools: ['a:b']}}",),
        *("spec.rollout.stageFusion", "got Always, allowed Auto or Never with environment"),
    ),
    "stage fusion of prompts whose samples are counted": Case(
        (
            "spec.rollout={samplesPerPrompt: 2, minValidSamples: 2, stageFusion: Always, "
            "onStop: {TokenLimit: LeaveOut}}",
        ),
        *("spec.rollout.stageFusion", "got Always, allowed Auto or Never with environment or min"),
    ),
    "an environment where SFT generates nothing": Case(
        (
            *("spec.algorithm.type=SFT", "spec.data.train={path: /d, answerField: answer}"),
            "spec.rollout.environment={tools: ['a:b']}",
        ),
        *("spec.rollout.environment", "got SFT, allowed an algorithm that generates responses"),
    ),
    "a masked conversation of a pair": Case(
        (
            "spec.algorithm.type=OnlineDPO",
            "spec.rollout={samplesPerPrompt: 2, environment: {tools: ['a:b']}, "
            "onStop: {TurnLimit: Mask}}",
        ),
        *("spec.rollout.onStop", "allowed Train, LeaveOut; write LeaveOut"),
    ),
    "a reward of no environment": Case(
        ("spec.rewards=[{environment: {}}]",),
        *("spec.rewards", "allowed environment with rollout.environment; name the environment"),
    ),
    "a threshold of a fusion that may not be there": Case(
        ("spec.rollout={stageFusion: Auto, stageFusionThreshold: 4}",),
        *("spec.rollout.stageFusionThreshold", "got Auto, allowed Always with"),
    ),
    "a fewest number without a limit": Case(
        ("spec.placement.objective.type=FewestDevices",),
        *("spec.placement.objective.maxStepSeconds", "without a limit on the time of a step; add"),
    ),
    "a limit of a step's time beside another objective": Case(
        ("spec.placement.objective={type: DeviceTime, maxStepSeconds: 9}",),
        *("spec.placement.objective.maxStepSeconds", "got DeviceTime, allowed FewestDevices"),
    ),
    "a limit of a step's time without an objective": Case(
        ("spec.placement.objective.maxStepSeconds=9.5",),
        *("spec.placement.objective.maxStepSeconds", "got StepTime, allowed FewestDevices"),
    ),
    "an objective beside groups": Case(
        (f"{GROUPS}[{{roles: [actor, critic]}}], objective: {{type: DeviceTime}}}}",),
        *("spec.placement.objective.type", "with groups that name theirs: got DeviceTime"),
    ),
    "an objective of several pools": Case(
        (TWO_POOLS, "spec.placement={type: Split, objective: {type: DeviceTime}}"),
        *("spec.placement.objective.type", "with several pools that each have a set of"),
    ),
    "an objective beside a fusion that is told": Case(
        ("spec.rollout.stageFusion=Always", "spec.placement.objective.type=DeviceTime"),
        *("spec.placement.objective.type", "with a stage fusion that is forced: got Dev"),
    ),
    "an objective on cpus": Case(
        (
            "spec.resources.nodePools=[{name: a, device: CPU}]",
            "spec.placement.objective.type=DeviceTime",
        ),
        *("spec.placement.objective.type", "which cannot be estimated on CPUs: got Dev"),
    ),
    "pools of different devices": Case(
        ("spec.resources.nodePools=[{name: a}, {name: b, device: CPU}]",)
        + (f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [critic], pool: b}}]}}",),
        *("spec.resources.nodePools", "pools of different devices: allowed the same device in all"),
    ),
    "generation cut too far": Case(
        ("spec.rollout.parallelism={tensor: 16}",),
        *("spec.rollout.parallelism.tensor", "one copy of the model needs more devices"),
    ),
}
"""Each breaks one rule. The models refuse them as well."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "the good manifest": (),
    "code by SSH": ("spec.code.git={url: 'ssh://git@git.example.com/r.git', revision: main}",),
    "code of a scope": ("spec.code.git={url: 'https://git.example.com/@team/r', revision: main}",),
    "packages alone": (
        "spec.code={requirements: ['a>=1,<2', 'b[x, y] == 1.* ; os_name == \"nt\"']}",
    ),
    "packages for code": ("spec.code={configMap: {name: a}, requirements: [a]}",),
    "a name of 40": (f"metadata.name={'a' * 40}",),
    "a role's own source": ("spec.models.critic.source.path=/c",),
    "a critic from the actor": ("spec.models.critic.source.sameAs=actor",),
    "a model cut over all devices": (f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (2, 1))
    + ("spec.resources.nodePools[0]={name: a, devicesPerNode: 2}",),
    "stages without known layers": (TRAINING % (2, 4),),
    "replicas with optimizers of their own": (
        "spec.models.actor.training={engine: Megatron, distributedOptimizer: false}",
    ),
    "whole sequences under FSDP": ("spec.models.actor.training.parallelism.sequence=false",),
    "a role of a custom algorithm": (
        "spec.algorithm={type: Custom, custom: {entrypoint: 'mine:Mine', parameters: {a: 1}}}",
        "spec.models.judge.source.sameAs=actor",
    ),
    "neither actor nor reward": (
        *(CUSTOM, "spec.models={judge: {source: {path: /m}}}", "spec.rewards=[]"),
        "spec.data.train.preferences={chosenField: better, rejectedField: worse}",
    ),
    "whole texts": (f"{TEXTS}{{path: /t, textField: body, maxRows: 8, rowsPerStep: 8}}",),
    "answers beside the algorithm's own": (f"{TEXTS}{{path: /t, answerField: answer}}",),
    "a critic's warm-up": ("spec.algorithm.ppo.criticWarmupSteps=9",),
    "pass@k": ("spec.data.evaluation={path: /e, samplesPerPrompt: 4, passAtK: [1, 4]}",),
    "a reward and a cost": (f"{SAFE}{{pretrainingWeight: 0.1}}}}", COST, f"{TEXTS}{{path: /t}}"),
    "pairs for DPO": ("spec.algorithm={type: DPO, dpo: {beta: 0.2}}", PAIRS, "spec.rewards=[]"),
    "pairs for a reward model": (
        *("spec.algorithm.type=RewardModel", PAIRS, "spec.rewards=[]"),
        "spec.models={reward_model: {source: {path: /m}}}",
    ),
    "answers for SFT": (
        *("spec.algorithm.type=SFT", "spec.rewards=[]"),
        "spec.data.train={path: /d, answerField: answer}",
    ),
    "ReMax of one sample": ("spec.algorithm.type=ReMax",),
    "REINFORCE++ of one sample": ("spec.algorithm.type=REINFORCEPlusPlus",),
    "a measured warm start": (
        "spec.schedule.warmStart.stopAtExactMatch=0.5",
        "spec.data.train={builtin: SortDigits}",
    ),
    "a warm start without an aim": ("spec.schedule.warmStart={}",),
    "a warm start on conversations": (
        "spec.schedule.warmStart={}",
        "spec.data.train={builtin: Calculations, answerField: conversation, trainOn: AllAnswers}",
    ),
    "a best checkpoint by exact match": ("spec.checkpoint.keepBest=ExactMatch",),
    "no best checkpoint": ("spec.checkpoint.keepBest=None",),
    "all as long as they may be": (
        "spec.rollout={maxPromptTokens: 10, expectedPromptTokens: 10}",
        "spec.rollout.expectedResponseTokens=1024",
    ),
    "responses that are cut off": (
        "spec.rollout={expectedTruncated: 0.2, expectedResponseTokens: 256}",
    ),
    "as many turns, and calls that take as long, as at most": (
        "spec.rollout.environment={tools: ['a:b'], expectedTurns: 8, expectedToolSeconds: 60, "
        "expectedSampled: 1}",
    ),
    "responses that are all cut off": (
        "spec.rollout={expectedTruncated: 0.99, expectedResponseTokens: 1024}",
    ),
    "an early stop": (f"{EARLY_STOP}}}", HELD_OUT),
    "headers": (
        f"{HEADERS}[{{name: Authorization, valueFromEnv: TOKEN, prefix: 'Bearer '}}, "
        "{name: X-a, value: ''}]}}]",
    ),
    "a judge": (f"{JUDGE}prompt: '{{record.question}} {{response}}'}}}}]",),
    "rewards for some rows": (
        SOURCES,
        "spec.rewards=[{function: {entrypoint: 'a:b'}, sources: [sums]}, "
        "{name: b, function: {entrypoint: 'a:b'}, where: {field: a.b, values: ['1', 'true']}}]",
    ),
    "the best model": (BEST_MODEL, HELD_OUT),
    "an early stop of a builtin task": (
        f"{EARLY_STOP}}}",
        "spec.data.train={builtin: SortDigits}",
    ),
    "an early stop by lengths": (
        *("spec.algorithm.type=SFT", "spec.rewards=[]", HELD_OUT, f"{EARLY_STOP}}}"),
        *("spec.data.train={path: /d, answerField: a}", "spec.checkpoint.keepBest=LengthMean"),
    ),
    "as many rows as a step": ("spec.data.train.maxRows=4",),
    "a fusion from some responses on": (
        "spec.rollout={stageFusion: Always, stageFusionThreshold: 4}",
    ),
    "truncated sampling": ("spec.rollout={topP: 0.9, topK: 40, minP: 0.05}",),
    "limits that leave nothing out where DPO samples nothing": (
        *("spec.algorithm.type=DPO", PAIRS, "spec.rewards=[]"),
        "spec.rollout={topP: 1.0, minP: 0.0}",
    ),
    "truncated sampling of an evaluation only": (
        "spec.data.evaluation={path: /e, temperature: 0.6, topP: 0.95, topK: 20}",
    ),
    "greedy answers with limits that leave nothing out": (
        "spec.data.evaluation={path: /e, topP: 1.0}",
    ),
    "masked responses": ("spec.rollout.onStop={TokenLimit: Mask}",),
    "only stop texts are trained on": (
        "spec.rollout={stop: ['</a>'], onStop: {EndToken: Mask, TokenLimit: LeaveOut}}",
    ),
    "ends of the responses of an evaluation": (
        *("spec.algorithm.type=SFT", "spec.rewards=[]", HELD_OUT),
        *(
            "spec.data.train={path: /d, answerField: a}",
            "spec.rollout={stop: ['.'], endTokens: ['!']}",
        ),
    ),
    "only responses that fill the context are trained on": (
        "spec.rollout.onStop={EndToken: Mask, TokenLimit: Mask, ContextLimit: Train}",
    ),
    "responses that fill the context, left out of pairs": (
        "spec.algorithm.type=OnlineDPO",
        "spec.rollout={samplesPerPrompt: 2, onStop: {ContextLimit: LeaveOut}}",
    ),
    "pairs without cut off responses": (
        "spec.algorithm.type=OnlineDPO",
        "spec.rollout={samplesPerPrompt: 2, onStop: {TokenLimit: LeaveOut}}",
    ),
    "cut off responses of answers": (
        *("spec.algorithm.type=SFT", "spec.rewards=[]"),
        "spec.data.train={builtin: SortDigits}",
        "spec.rollout.onStop={TokenLimit: Train}",
    ),
    "two pools for the planner": (TWO_GPU_POOLS,),
    "a pool for each half": (TWO_POOLS, "spec.placement={type: Split}"),
    "a part of a pool, split": ("spec.placement={type: Split, maxDevices: 4}",),
    "as many devices as there are": ("spec.placement.maxDevices=8",),
    "least device time": ("spec.placement.objective.type=DeviceTime",),
    "the fewest devices of some": (
        "spec.placement={maxDevices: 4, objective: {type: FewestDevices, maxStepSeconds: 0.5}}",
    ),
    "a split of as few devices as are best": (
        "spec.placement={type: Split, objective: {type: DeviceTime}}",
    ),
    "the objective that is the default, in words": (
        f"{GROUPS}[{{roles: [actor, critic]}}], objective: {{type: StepTime}}}}",
    ),
    "an objective in a chart's node pools": (
        "spec.resources={}",
        "spec.placement.objective.type=DeviceTime",
    ),
    "a model on all devices": ("spec.rollout.parallelism={tensor: 8}",),
    "groups that share devices": (
        f"{GROUPS}[{{roles: [actor]}}, {{roles: [critic], firstDevice: 4, devices: 4}}]}}",
    ),
    "a role in a group for each kind of its calls": (
        f"{GROUPS}[{{roles: [actor, critic], calls: [Train, Infer], devices: 4}}, "
        "{roles: [actor], calls: [Generate], tensor: 2}]}",
    ),
    "a group that cuts a model into fewer parts than its training does": (
        TRAINING % (8, 4),
        f"{GROUPS}[{{roles: [actor, critic], tensor: 2, pipeline: 2}}]}}",
    ),
    "a group for what no other names": (
        f"{GROUPS}[{{roles: [actor, critic]}}, {{roles: [actor], calls: [Generate]}}]}}",
    ),
    "groups in two pools": (
        TWO_POOLS,
        f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [critic], pool: b}}]}}",
    ),
    "groups in a chart's node pools": (
        "spec.resources={}",
        f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [critic], pool: b}}]}}",
    ),
    "a time to live and its older name": (
        "spec.clusterTTLSeconds=60",
        "spec.ttlSecondsAfterFinished=60",
    ),
    "pods of any content that the models have": (
        "spec.resources.pod={volumes: [{name: data, persistentVolumeClaim: {claimName: d}}]}",
        "spec.resources.headPod={volumeMounts: [{name: data, mountPath: /data}]}",
        "spec.resources.nodePools[0].pod={resources: {limits: {rdma/hca: 1}}}",
    ),
    "a chart's node pools": ("spec.resources={}", "spec.placement.maxDevices=1000"),
    "a model cut evenly": (
        f"spec.models.actor.shape={SHAPE % 3}",
        "spec.rollout.parallelism.tensor=3",
    ),
    "one sample for ppo": ("spec.rollout.samplesPerPrompt=1",),
    "several sources": (
        "spec.data.train={sources: [{path: /a, weight: 3, name: a}, {huggingFace: b/c}, "
        "{builtin: SortDigits, maxRows: 4}]}",
        "spec.data.evaluation={sources: [{path: /d, name: a}, {huggingFace: b/c}]}",
    ),
    "answers of all sources": (
        "spec.algorithm={type: SFT}",
        "spec.data.train={sources: [{path: /a, answerField: b}, {builtin: SortDigits}]}",
        "spec.rewards=[]",
    ),
    "all answers of one source": (
        *("spec.algorithm={type: SFT}", "spec.rewards=[]"),
        "spec.data.train={sources: [{path: /a, answerField: b, trainOn: AllAnswers}, "
        "{builtin: SortDigits}]}",
    ),
    "all answers of pairs": (
        *("spec.algorithm={type: DPO}", "spec.rewards=[]"),
        "spec.data.train={path: /a, preferences: {}, trainOn: AllAnswers}",
    ),
    "generated tasks": (
        "spec.data.train={sources: [{path: /a}, {reasoningGym: {dataset: chain_sum, seed: 7, "
        "size: 20, parameters: {min_terms: 2, operators: ['+', '-'], text: a, flag: true}}}]}",
        "spec.data.evaluation={reasoningGym: {dataset: chain_sum}}",
    ),
    "answers of generated tasks": (
        "spec.algorithm={type: SFT}",
        "spec.data.train={reasoningGym: {dataset: chain_sum}}",
        "spec.rewards=[]",
    ),
    "an adaptive coefficient": (
        "spec.algorithm={type: PPO, ppo: {klCoefficient: 0.1, adaptiveKl: {target: 6}}}",
    ),
    "a split of a saved dataset": ("spec.data.train={path: /d, split: dev}",),
    "a dataset's part": ("spec.data.train={huggingFace: a/b, split: train, configuration: main}",),
    "a model's revision": ("spec.models.actor.source={huggingFace: a/b, revision: main}",),
    "equal deadlines": ("spec.startDeadlineSeconds=60", "spec.activeDeadlineSeconds=60"),
    "a whole step's mini-batch": ("spec.schedule.miniBatchPrompts=4",),
    "parameters of all kinds": (
        "spec.rewards[0].function.parameters={a: 1, b: 0.5, c: true, d: text}",
    ),
    "a reward that is a service": (
        "spec.rewards=[{http: {url: 'https://rewards:8000/v1?x=1', parameters: {a: 1}}}]",
    ),
    "variables of all kinds": (
        "spec.env=[{name: A}, {name: B, value: b}, "
        "{name: C, valueFrom: {configMapKeyRef: {name: c.d, key: e.f_G, optional: true}}}]",
    ),
    "null for what may be left out": ("spec.code=null", "spec.schedule.warmStart=null"),
}
"""Each is as near to a refused one as may be."""


@dataclass(frozen=True)
class Update:
    """A change of a job that is there."""

    changes: tuple[str, ...]
    """From the good manifest to the changed one."""
    says: str = ""
    """Words of the message; empty where the change is allowed."""
    before: tuple[str, ...] = ()
    """From the good manifest to the one before the change."""


SUSPENDED = "spec.suspend=true"

UPDATED: dict[str, Update] = {
    "nothing": Update(()),
    "suspend": Update((SUSPENDED,)),
    "resume": Update((), before=(SUSPENDED,)),
    "the time to live": Update(("spec.clusterTTLSeconds=60",)),
    "the time to live by its older name": Update(("spec.ttlSecondsAfterFinished=60",)),
    "a deadline that was not there": Update(("spec.activeDeadlineSeconds=60",)),
    "a deadline that goes": Update((), before=("spec.activeDeadlineSeconds=60",)),
    "the failure policy": Update(("spec.failurePolicy={maxRestarts: 1}",)),
    "a default, written out": Update(("spec.rollout.temperature=1.0", "spec.checkpoint={}")),
    "a fresh start": Update(("spec.checkpoint={start: Fresh}",)),
    "a fresh start that goes": Update((), before=("spec.checkpoint={start: Fresh}",)),
    "a fresh start, and checkpoints": Update(
        ("spec.checkpoint={start: Fresh, keepLast: 9}",),
        "spec.checkpoint can change only while the job is suspended, but for checkpoint.start;",
    ),
    "more steps": Update(
        ("spec.schedule.steps=20",),
        "spec.schedule.steps can change only while the job is suspended; write suspend: true",
    ),
    "more steps, and a rest": Update(("spec.schedule.steps=20", SUSPENDED)),
    "more steps, and on": Update(("spec.schedule.steps=20",), before=(SUSPENDED,)),
    "more steps of a suspended job": Update(
        ("spec.schedule.steps=20", SUSPENDED), before=(SUSPENDED,)
    ),
    "evaluations": Update(
        ("spec.schedule.evaluateEverySteps=1",), "spec.schedule.evaluateEverySteps can change only"
    ),
    "an early stop": Update(
        (f"{EARLY_STOP}}}", HELD_OUT), "spec.schedule.earlyStop can change only", (HELD_OUT,)
    ),
    "an early stop of a suspended job": Update(
        (f"{EARLY_STOP}}}", HELD_OUT), before=(HELD_OUT, SUSPENDED)
    ),
    "the learning rate": Update(
        ("spec.models.actor.training.learningRate=0.1",),
        "spec.models.*.training.learningRate can change only while the job is suspended",
    ),
    "the learning rate of a suspended job": Update(
        ("spec.models.actor.training.learningRate=0.1",), before=(SUSPENDED,)
    ),
    "checkpoints": Update(("spec.checkpoint.everySteps=1",), "spec.checkpoint can change only"),
    "the best checkpoint": Update(("spec.checkpoint.keepBest=None",), "spec.checkpoint can change"),
    "an image": Update(("spec.image.runtime=a:b",), "spec.image can change only"),
    "an image of a suspended job": Update(("spec.image.runtime=a:b",), before=(SUSPENDED,)),
    "node pools": Update(
        ("spec.resources.nodePools[0].nodes=4",), "spec.resources can change only while"
    ),
    "a field of all pods": Update(
        ("spec.resources.pod={labels: {a: c}}",),
        "spec.resources can change only while",
        ("spec.resources.pod={labels: {a: b}}",),
    ),
    "a field of a pool's pods": Update(
        ("spec.resources.nodePools[0].pod={affinity: {podAffinity: {}}}",),
        "spec.resources can change only while",
    ),
    "a field of the head pod that stays": Update(
        ("spec.resources.headPod={tolerations: [{operator: Exists}]}", "spec.suspend=true"),
        before=("spec.resources.headPod={tolerations: [{operator: Exists}]}",),
    ),
    "a field of the pods of a suspended job": Update(
        ("spec.resources.pod={labels: {a: c}}",),
        before=("spec.resources.pod={labels: {a: b}}", SUSPENDED),
    ),
    "the priority": Update(("spec.priorityClassName=a",), "spec.priorityClassName can change only"),
    "trackers": Update(("spec.telemetry.tensorboard=false",), "spec.telemetry can change only"),
    "the algorithm": Update(
        ("spec.algorithm={type: Custom, custom: {entrypoint: 'a:B'}}",),
        "spec.algorithm cannot change, but for algorithm.graph; change it back, or make a new job",
    ),
    "the algorithm of a suspended job": Update(
        ("spec.algorithm.ppo.gamma=0.5",), "spec.algorithm cannot change", (SUSPENDED,)
    ),
    "a role that comes": Update(
        ("spec.models.critic.source.sameAs=actor",),
        "spec.models cannot change, but for models.*.shape, models.*.training.activationRecompute",
        (SUSPENDED,),
    ),
    "a role that goes": Update(
        (), "spec.models cannot change", ("spec.models.critic.source.sameAs=actor", SUSPENDED)
    ),
    "a model": Update(
        ("spec.models.actor.source.path=/n",), "spec.models cannot change", (SUSPENDED,)
    ),
    "a model's shape": Update(
        (f"spec.models.actor.shape={SHAPE % 3}",),
    ),
    "a model's shape, and its source": Update(
        (f"spec.models.actor={{source: {{path: /n}}, shape: {SHAPE % 3}}}",),
        *("spec.models cannot change", (SUSPENDED,)),
    ),
    "a shape of a reward model": Update(
        (f"spec.rewards=[{{model: {{path: /m, shape: {SHAPE % 3}}}}}]",),
        before=("spec.rewards=[{model: {path: /m}}]",),
    ),
    "a graph of a custom algorithm": Update(
        (CUSTOM, f"spec.algorithm.graph={GRAPH}"), before=(CUSTOM,)
    ),
    "a graph, and another parameter": Update(
        (CUSTOM, f"spec.algorithm.graph={GRAPH}", "spec.algorithm.custom.parameters.a=2"),
        *("spec.algorithm cannot change, but for algorithm.graph", (CUSTOM, SUSPENDED)),
    ),
    "micro-batches": Update(
        ("spec.models.actor.training.microBatchTokens=512",),
        "spec.models.*.training.microBatchTokens can change only while the job is suspended",
    ),
    "micro-batches of a suspended job": Update(
        ("spec.models.actor.training.microBatchTokens=512",), before=(SUSPENDED,)
    ),
    "recomputation of a suspended job": Update(
        ("spec.models.actor.training.activationRecompute=true",), before=(SUSPENDED,)
    ),
    "recomputation": Update(
        ("spec.models.actor.training.activationRecompute=true",),
        "spec.models.*.training.activationRecompute can change only while",
    ),
    "the training engine": Update(
        ("spec.models.actor.training.engine=Megatron",),
        "spec.models.*.training.engine can change only while the job is suspended",
    ),
    "the cut of a model": Update(
        (TRAINING % (2, 2),),
        "spec.models.*.training.parallelism can change only while the job is suspended",
        (TRAINING % (1, 1),),
    ),
    "offloading": Update(
        ("spec.models.actor.training.offload=Always",),
        "spec.models.*.training.offload can change only while the job is suspended",
    ),
    "offloading of a suspended job": Update(
        ("spec.models.actor.training.offload=Never",), before=(SUSPENDED,)
    ),
    "the optimizer of replicas": Update(
        (TRAINING % (1, 1), "spec.models.actor.training.distributedOptimizer=false"),
        "spec.models.*.training.distributedOptimizer can change only while",
        (TRAINING % (1, 1),),
    ),
    "engine, cut and optimizer of a suspended job": Update(
        (TRAINING % (2, 2), "spec.models.actor.training.distributedOptimizer=false"),
        before=(SUSPENDED,),
    ),
    "sequences at once": Update(
        ("spec.rollout.maxConcurrentSequences=8",),
        "spec.rollout.maxConcurrentSequences can change only while",
    ),
    "engines of several ranks": Update(
        ("spec.rollout.parallelism.tensor=2",), "spec.rollout.parallelism can change only while"
    ),
    "lengths of prompts": Update(
        ("spec.rollout.expectedPromptTokens=5",),
        "spec.rollout.expectedPromptTokens can change only while the job is suspended",
    ),
    "lengths of responses": Update(
        ("spec.rollout.expectedResponseTokens=5",),
        "spec.rollout.expectedResponseTokens can change only while the job is suspended",
    ),
    "responses that are cut off": Update(
        ("spec.rollout.expectedTruncated=0.1",),
        "spec.rollout.expectedTruncated can change only while the job is suspended",
    ),
    "lengths of a suspended job": Update(
        ("spec.rollout={expectedPromptTokens: 5, expectedResponseTokens: 5}",), before=(SUSPENDED,)
    ),
    "the cache": Update(
        ("spec.rollout.kvCacheMemory=1Gi",),
        "spec.rollout.kvCacheMemory can change only while the job is suspended",
    ),
    "the cache of a suspended job": Update(
        ("spec.rollout={kvCacheMemory: 1Gi, maxConcurrentSequences: 8}",), before=(SUSPENDED,)
    ),
    "overlapping stages": Update(
        ("spec.rollout.stageFusion=Never",),
        "spec.rollout.stageFusion can change only while the job is suspended",
    ),
    "a threshold of overlapping stages": Update(
        ("spec.rollout={stageFusion: Always, stageFusionThreshold: 4}",),
        "spec.rollout.stageFusionThreshold can change only while the job is suspended",
        ("spec.rollout.stageFusion=Always",),
    ),
    "overlapping stages of a suspended job": Update(
        ("spec.rollout={stageFusion: Never}",), before=(SUSPENDED,)
    ),
    "weight decay": Update(
        ("spec.models.actor.training.weightDecay=1",), "spec.models cannot change", (SUSPENDED,)
    ),
    "sampling": Update(
        ("spec.rollout.temperature=0.5",), "spec.rollout cannot change", (SUSPENDED,)
    ),
    "a reward": Update(("spec.rewards[0].weight=2",), "spec.rewards cannot change", (SUSPENDED,)),
    "a reward's parameter": Update(
        ("spec.rewards[0].function.parameters.a=2",), "spec.rewards cannot change", (SUSPENDED,)
    ),
    "a reward model": Update(
        ("spec.rewards=[{model: {path: /n}}]",),
        *("spec.rewards cannot change, but for rewards.*.model.shape, rewards.*.model.micro",),
        *(("spec.rewards=[{model: {path: /m}}]", SUSPENDED),),
    ),
    "a reward's function in the place of its model": Update(
        (), "spec.rewards cannot change", ("spec.rewards=[{model: {path: /m}}]", SUSPENDED)
    ),
    "micro-batches of a reward model": Update(
        ("spec.rewards=[{model: {path: /m, microBatchTokens: 512}}]",),
        "spec.rewards.*.model.microBatchTokens can change only while the job is suspended",
        ("spec.rewards=[{model: {path: /m, microBatchTokens: 64}}]",),
    ),
    "micro-batches of a suspended job's reward model": Update(
        ("spec.rewards=[{model: {path: /m, microBatchTokens: 512}}]",),
        before=("spec.rewards=[{model: {path: /m}}]", SUSPENDED),
    ),
    "the order of rewards": Update(
        (
            "spec.rewards=[{name: b, function: {entrypoint: 'a:b'}}, "
            "{function: {entrypoint: 'a:c'}}]",
        ),
        "spec.rewards cannot change",
        (
            "spec.rewards=[{function: {entrypoint: 'a:c'}}, "
            "{name: b, function: {entrypoint: 'a:b'}}]",
        ),
    ),
    "data": Update(("spec.data.train.maxRows=4",), "spec.data cannot change", (SUSPENDED,)),
    "the seed": Update(
        ("spec.schedule.seed=1",),
        "spec.schedule cannot change, but for schedule.earlyStop, schedule.evaluateEverySteps, "
        "schedule.steps",
        (SUSPENDED,),
    ),
    "a mini-batch that comes": Update(
        ("spec.schedule.miniBatchPrompts=2",), "spec.schedule cannot change", (SUSPENDED,)
    ),
    "the placement": Update(
        ("spec.placement.maxDevices=8",), "spec.placement can change only while"
    ),
    "the placement of a suspended job": Update(
        ("spec.placement.maxDevices=8",), before=(SUSPENDED,)
    ),
    "the objective": Update(
        ("spec.placement.objective.type=DeviceTime",), "spec.placement can change only while"
    ),
    "the objective of a suspended job": Update(
        ("spec.placement.objective={type: FewestDevices, maxStepSeconds: 9}",),
        before=(SUSPENDED,),
    ),
    "groups": Update(
        (f"{GROUPS}[{{roles: [actor, critic]}}]}}",), "spec.placement can change only while"
    ),
    "groups of a suspended job": Update(
        (f"{GROUPS}[{{roles: [actor, critic]}}]}}",), before=(SUSPENDED,)
    ),
    "variables": Update(("spec.env=[{name: A, value: b}]",), "spec.env can change only while"),
    "variables of a suspended job": Update(
        ("spec.env=[{name: A, value: b}]",), before=(SUSPENDED,)
    ),
    "code that comes": Update(("spec.code.local=a",), "spec.code can change only while"),
    "code that comes to a suspended job": Update(("spec.code.local=a",), before=(SUSPENDED,)),
    "the hub": Update(("spec.hub.tokenSecretName=a",), "spec.hub can change only while"),
    "who reconciles": Update(
        ("spec.managedBy=kueue.x-k8s.io/multikueue",), "spec.managedBy cannot change", (SUSPENDED,)
    ),
}
"""Updates, allowed and refused, of jobs that run and of suspended ones."""
