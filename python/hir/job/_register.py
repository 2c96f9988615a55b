"""Gives the script recorded groups wherever it makes a process group, whichever backend it names, and one store."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from ._calls import Group
from ._group import RecordedGroup
from ._rank import CallFuture, Rank

#: The name under which PyTorch knows the recorded backend.
NAME = "hir_job"

#: The backend that gives two ranks a communicator of their own for messages outside of batches. That of older versions does so unless
#: `init_process_group` has a `device_id`.
LAZY = "nccl-lazy"

#: The backends whose rules of order are those of NCCL.
NCCL = ("nccl", "nccl2", "nccl-lazy", "nccl-legacy", "xccl")


def rules_of(asked: str, device: str) -> str:
    """Returns the backend whose rules hold for tensors of a device in a group of the backend that the script names."""
    by_device = dict(it.split(":", 1) for it in asked.split(",") if ":" in it)
    default = "nccl" if device == "cuda" else "gloo"
    name = by_device.get(device, default) if by_device else default if asked == "undefined" else asked
    return "nccl" if name in NCCL else "gloo"


def register(rank: Rank, override: str | None, device: str, ranks: int, port: int) -> None:
    """Replaces what creates process groups."""
    asked = ["gloo"]
    is_eager = [hasattr(c10d, "_create_nccl2_process_group") and os.environ.get("TORCH_DIST_USE_NCCL2") != "0"]

    def create(options: Any, _: Any) -> RecordedGroup:
        members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        has_pairs = LAZY in asked[0] or not is_eager[0]
        return RecordedGroup(rank, Group(str(options.group_id), "undefined", members, override or rules_of(asked[0], device), has_pairs), asked[0])

    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    original = c10d._new_process_group_helper
    signature = inspect.signature(original)

    def helper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        before, asked[0] = asked[0], str(bound.arguments["backend"]).lower()
        bound.arguments["backend"] = NAME
        members = tuple(bound.arguments["global_ranks_in_group"])
        # The names of groups that only their members make are no numbers.
        if members and str(bound.arguments["group_name"]).isdigit():
            rank.send("asked", members, rank.place(sys._getframe(1)))
        for option in ("backend_options", "pg_options", "device_id"):
            if option in bound.arguments:
                bound.arguments[option] = None
        try:
            group, store = original(*bound.args, **bound.kwargs)
            if isinstance(group, RecordedGroup):
                c10d._world.pg_map[group] = (asked[0], c10d._world.pg_map[group][1])
            return group, store
        finally:
            asked[0] = before

    c10d._new_process_group_helper = helper
    # The recorder of PyTorch does not know groups in Python, whatever the script sets.
    if hasattr(c10d, "_FR_SELF_RECORDING_BACKENDS"):
        c10d._FR_SELF_RECORDING_BACKENDS.add(NAME)
    initialise = c10d.init_process_group
    of_init = inspect.signature(initialise)

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        bound = of_init.bind(*args, **kwargs)
        device = bound.arguments.pop("device_id", None)
        is_eager[0] = is_eager[0] or device is not None
        if device is not None and bound.arguments.get("backend") is None and _type_of(device) == "cuda":
            bound.arguments["backend"] = "nccl"
        if bound.arguments.get("store") is None:
            # Whichever address the script names: the store of the job is there.
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
            bound.arguments["init_method"] = "env://"
        return initialise(*bound.args, **bound.kwargs)

    c10d.init_process_group = dist.init_process_group = init_process_group

    begin_batches()
    _release_futures()

    def spawn(function: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        if nprocs != ranks:
            raise RuntimeError(f"the script starts {nprocs} ranks by itself: run it with --ranks {nprocs}")
        function(rank.rank, *args)

    # Each rank is already a process.
    torch.multiprocessing.spawn = torch.multiprocessing.start_processes = spawn


def begin_batches() -> None:
    """Tells recorded groups where a batch of messages begins and ends."""
    batch = c10d.batch_isend_irecv

    def batch_isend_irecv(operations: Any) -> Any:
        group = (operations[0].group if operations else None) or dist.group.WORLD
        return group.batch(lambda: batch(operations)) if isinstance(group, RecordedGroup) else batch(operations)

    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch_isend_irecv


def _release_futures() -> None:
    """Notes which futures of calls go to the C++ of PyTorch: those that hooks of DDP return, and those that are collected."""

    def released(future: Any) -> Any:
        if isinstance(future, CallFuture):
            future.release()
        return future

    register_hook = DistributedDataParallel.register_comm_hook

    def register_comm_hook(model: Any, state: Any, hook: Any) -> None:
        @functools.wraps(hook)
        def replaced(state: Any, bucket: Any) -> Any:
            return released(hook(state, bucket))

        register_hook(model, state, replaced)

    DistributedDataParallel.register_comm_hook = register_comm_hook
    for name in ("collect_all", "wait_all"):
        collect = getattr(torch.futures, name)
        setattr(torch.futures, name, lambda futures, collect=collect: collect([released(it) for it in futures]))


def _type_of(device: Any) -> str:
    return "cuda" if isinstance(device, int) else torch.device(device).type
