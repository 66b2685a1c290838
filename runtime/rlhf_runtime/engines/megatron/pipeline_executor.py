"""Executor: runs a rank's program, the passes of its stages and the messages between stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from rlhf_runtime.engines.megatron.stage_passes import StagePasses
from rlhf_runtime.engines.megatron.stage_programs import Program, StageExchange
from rlhf_sizing.schedules import Operation


def execute(program: Program, stages: Sequence[StagePasses], group: dist.ProcessGroup) -> None:
    """Run a rank's program.

    Args:
        program: this rank's.
        stages: this rank's stage of each model, as operations number the models.
        group: the ranks of the pipeline, numbered as in the program. All of them execute their
            programs; NCCL connects them in their first exchanges.
    """
    execution = _Execution(stages, group)
    for step in program:
        if isinstance(step, StageExchange):
            execution.exchange(step)
        else:
            execution.compute(step)
    execution.finish_exchange()


class _Execution:
    """Results of operations, from their computation to their use on the next stage."""

    def __init__(self, stages: Sequence[StagePasses], group: dist.ProcessGroup) -> None:
        self._stages = stages
        self._group = group
        self._computed: dict[Operation, torch.Tensor] = {}
        """Results that another rank needs, until they are sent."""
        self._received: dict[Operation, torch.Tensor] = {}
        """Results of other ranks, until an operation uses them."""
        self._transfers: list[dist.P2POp] = []
        """Transfers of the last exchange. Their tensors must live until they have arrived."""
        self._works: list[dist.Work] = []

    def compute(self, operation: Operation) -> None:
        stage, number = self._stages[operation.pipeline], operation.micro_batch
        shift = 1 if operation.is_backward else -1
        received = self._received.pop(operation._replace(stage=operation.stage + shift), None)
        run = stage.backward if operation.is_backward else stage.forward
        result = run(number, received)
        if result is not None:
            self._computed[operation] = result

    def exchange(self, exchange: StageExchange) -> None:
        self.finish_exchange()
        for source, peer in exchange.sends:
            self._add_transfer(dist.isend, self._computed.pop(source), peer)
        for source, peer in exchange.receives:
            stage = self._stages[source.pipeline]
            buffer = stage.buffer(source.micro_batch, is_gradient=source.is_backward)
            self._received[source] = buffer
            self._add_transfer(dist.irecv, buffer, peer)
        self._works = dist.batch_isend_irecv(self._transfers)
        # The next operation needs what arrives. What is sent may be on its way meanwhile.
        if exchange.receives:
            self.finish_exchange()

    def finish_exchange(self) -> None:
        for work in self._works:
            work.wait()
        self._works, self._transfers = [], []

    def _add_transfer(self, function: Any, tensor: torch.Tensor, peer: int) -> None:
        self._transfers.append(dist.P2POp(function, tensor, group=self._group, group_peer=peer))
