"""Witnesses that are not ours: autograd's saved tensors, PyTorch's memory tracker, the GPU's allocator.

The one place of the library that touches PyTorch's private modules; ``PRIVATE`` names them, and a test imports
each, so that a new release that moves one says so at once.
"""

PRIVATE = (
    "torch._subclasses.fake_tensor",
    "torch.utils._python_dispatch",
    "torch.utils._pytree",
    "torch.distributed._tools.mem_tracker",
    "torch.distributed._tools.fsdp2_mem_tracker",
    "torch.distributed.tensor._sharding_prop",
    "torch.testing._internal.distributed.fake_pg",
    "torch.distributed._tools.fake_collectives",
    "torch.distributed.pipelining._backward",
    "torch.distributed.pipelining._schedule_visualizer",
)
