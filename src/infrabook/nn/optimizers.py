"""Mixed precision by hand: 16-bit weights that compute, fp32 copies that an optimizer updates.

Frameworks differ in what becomes of the gradient between the two, and so in bytes per parameter: ``Gradients``
names three ways. ``recipes`` holds the account of each, and a lab compares the two tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Gradients: TypeAlias = Literal["16-bit", "fp32", "both"]


class MasterWeights:
    """Any optimizer, over fp32 master copies of 16-bit parameters.

    ``make([master])`` returns an optimizer for one tensor, and each parameter has one of its own, so that
    tensors can be updated one after another. ``gradients`` says what is kept from backward to step:

    - ``"16-bit"``: the parameter's own gradient; an fp32 one exists for one tensor at a time (16 bytes with Adam);
    - ``"fp32"``: a hook adds each gradient to an fp32 ``main`` gradient and frees it, as Megatron-LM does (18);
    - ``"both"``: the same, but the 16-bit gradient keeps its storage, as a preallocated bucket does (20).

    The main gradients sum whatever is backpropagated between two steps. Parameters that require no gradient
    are left alone.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Callable[[list[Tensor]], torch.optim.Optimizer],
        *, gradients: Gradients = "16-bit",
    ) -> None:  # fmt: skip
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]
        self.optimizers = [make([master]) for master in self.masters]
        self.gradients = gradients
        self.main: list[Tensor] = []
        if gradients != "16-bit":
            self.main = [torch.zeros_like(master) for master in self.masters]
            for parameter, total in zip(self.parameters, self.main, strict=True):
                parameter.register_post_accumulate_grad_hook(self._accumulate(total))  # type: ignore[no-untyped-call]  # torch

    def _accumulate(self, total: Tensor) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            total.add_(parameter.grad)
            if self.gradients == "fp32":
                parameter.grad = None
            else:
                parameter.grad.zero_()

        return hook

    @torch.no_grad()
    def step(self) -> None:
        """Update every master in fp32 and round it to its parameter, one tensor after another."""
        for i, (parameter, master, optimizer) in enumerate(
            zip(self.parameters, self.masters, self.optimizers, strict=True)
        ):
            if self.main:
                master.grad = self.main[i]  # the same storage, no copy
            elif parameter.grad is not None:
                master.grad = parameter.grad.float()
            optimizer.step()
            master.grad = None
            parameter.copy_(master)

    @torch.no_grad()
    def zero_grad(self) -> None:
        """Forget the gradients; storages that are kept are filled with zeros."""
        for total in self.main:
            total.zero_()
        if self.gradients == "16-bit":
            for parameter in self.parameters:
                parameter.grad = None

    def tensors(self) -> dict[str, list[Tensor]]:
        """What it keeps beside the optimizers' own states, by name."""
        return {"master": self.masters, "main": self.main}
