"""AxoNN's schedule (Singh and Bhatele, IPDPS 2022), for the stages of torch.distributed.pipelining."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.profiler import record_function

from host_agent.pipeline.messages import BACKWARD, FORWARD, Inbox, Outbox, receive
from switchml.errors import ConfigError


class ScheduleMessageDriven(PipelineScheduleSingle):
    """Message-driven schedule: a rank runs the forward or backward pass of whichever micro-batch has arrived.

    The first stage starts `in_flight` micro-batches, by default as many as there are stages, and another one for each
    whose gradients have returned (axonn/inter_layer.py). So no stage holds activations of more than that many.
    Otherwise used like torch's `ScheduleGPipe` and `Schedule1F1B`, with the same arguments. Raises ConfigError for an
    `in_flight` below 1, and if torch's stages are older than those of 2.13.
    """

    def __init__(
        self,
        stage: _PipelineStageBase,
        n_microbatches: int,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        *,
        in_flight: int | None = None,
        **options: Any,
    ):
        if not hasattr(PipelineScheduleSingle, "_initialize_pp_stages"):
            raise ConfigError(f"pipelines need the stages of torch 2.13 or newer; this is torch {torch.__version__}")
        if in_flight is not None and in_flight < 1:
            raise ConfigError(f"{in_flight} micro-batches in flight: expected at least 1")
        super().__init__(stage, n_microbatches, loss_fn, **options)
        self._in_flight = min(n_microbatches, in_flight or stage.num_stages)

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        stage, count, trains = self._stage, self._n_microbatches, self._has_backward
        base: Any = self  # its methods have no types
        arg_mbs, kwarg_mbs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        base._initialize_stage(arg_mbs[0], kwarg_mbs[0], target_mbs[0] if target_mbs else None, loss_kwargs)
        for micro_batch in range(count):
            self._forget(micro_batch)
        inbox, outbox = Inbox(), Outbox(2 * self._in_flight)
        entered = 0
        if stage.is_first:
            entered = self._in_flight if trains else count
            for micro_batch in range(entered):
                inbox.put(FORWARD, micro_batch)
        else:
            inbox.receive(FORWARD, count, self._receive_activations)
        # Gradients come from the next stage, unless this is the last one or no earlier stage is trained.
        waits = trains and any(info.tensor_meta is not None for info in stage.grad_recv_info[0])
        if waits:
            inbox.receive(BACKWARD, count, self._receive_gradients)
        returned = 0
        for _ in range(2 * count if trains else count):
            direction, micro_batch = inbox.take()
            if direction == FORWARD:
                with record_function(f"Forward {micro_batch}"):
                    args, kwargs = arg_mbs[micro_batch], kwarg_mbs[micro_batch]
                    output = stage.forward_one_chunk(micro_batch, args, kwargs, save_forward_output=return_outputs)
                    base._maybe_compute_loss(stage, output, target_mbs, micro_batch, loss_kwargs)
                outbox.send(stage.get_fwd_send_ops(micro_batch), micro_batch)
                if trains and not waits:
                    inbox.put(BACKWARD, micro_batch)
            else:
                returned += 1
                with record_function(f"Backward {micro_batch}"):
                    loss = base._maybe_get_loss(stage, micro_batch)
                    stage.backward_one_chunk(micro_batch, loss=loss, last_backward=returned == count)
                outbox.send(stage.get_bwd_send_ops(micro_batch), micro_batch)
                self._forget(micro_batch)
                if stage.is_first and entered < count:
                    inbox.put(FORWARD, entered)
                    entered += 1
        inbox.close()
        base._update_losses(stage, losses)
        if trains:
            stage.perform_reduce_grad(count if self.scale_grads else 1)
        outbox.wait()

    def _receive_activations(self, micro_batch: int) -> None:
        self._allocate(self._stage.args_recv_info[micro_batch])
        receive(self._stage.get_fwd_recv_ops(micro_batch), micro_batch, FORWARD)

    def _receive_gradients(self, micro_batch: int) -> None:
        self._allocate(self._stage.grad_recv_info[micro_batch])
        receive(self._stage.get_bwd_recv_ops(micro_batch), micro_batch, BACKWARD)

    # torch's stages allocate memory for all micro-batches' messages at once; these only for those in flight.

    def _allocate(self, infos: tuple[Any, ...]) -> None:
        for info in infos:
            if not info.is_root_arg and info.tensor_meta is not None:
                info.buffer = torch.empty(
                    info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self._stage.device
                )

    def _forget(self, micro_batch: int) -> None:
        stage = self._stage
        for info in (*stage.args_recv_info.get(micro_batch, ()), *stage.grad_recv_info.get(micro_batch, ())):
            info.buffer = None
