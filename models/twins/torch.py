"""The rungs on PyTorch: `nn.Module`, `torch.optim`, and a function of one step.

If Keras compiles its step, so do the rungs with Keras's optimizer; the others compile the network, as is usual.

`torch.optim.RMSprop` adds epsilon to the square root, Keras inside it, which trains differently where gradients are
small: `RMSprop` here is Keras's formula, by the same `torch._foreach` operations that PyTorch's uses on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from keras_matrix.models.twins import interface
from keras_matrix.models.twins.interface import Batch, Compiled, Rung, optimizer_of
from keras_matrix.models.twins.keras_loop import KerasLoop
from keras_matrix.models.twins.torch_networks import NETWORKS, from_keras, pairs, to_keras


def rungs(model: Any, workload: str, compiled: Compiled, seed: int) -> dict[str, Callable[[], Rung]]:
    """Return what makes each rung for a Keras model of the workload."""
    return {
        "loop": lambda: _KerasLoop(model),
        "no_metrics": lambda: _KerasLayers(model, compiled, None),
        "layers": lambda: _KerasLayers(model, compiled, _own_optimizer(model, _weights(model))),
        "native": lambda: _Native(model, workload, compiled),
    }


class _KerasLoop(KerasLoop):
    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.model.train()

    def step(self, batch: Batch) -> None:
        self.model.train_function([batch])

    def end_epoch(self) -> dict[str, float]:
        found = super().end_epoch()
        self.model.eval()
        return found


class _Steps:
    """A training step that is a function of a batch and returns the loss."""

    counts = False
    _train: Callable[[Any, Any], Any]

    def __init__(self, model: Any) -> None:
        self._model, self._steps = model, 0
        self._loss: Any = 0.0

    def begin_epoch(self) -> None:
        self._loss, self._steps = 0.0, 0

    def step(self, batch: Batch) -> None:
        self._loss += self._train(*batch)
        self._steps += 1

    def end_epoch(self) -> dict[str, float]:
        return {"loss": float(self._loss) / self._steps}

    def write_back(self) -> None:
        pass


class _KerasLayers(_Steps):
    """Keras's layers and loss in a step without metrics, with its own optimizer or one of PyTorch."""

    def __init__(self, model: Any, compiled: Compiled, own: Any) -> None:
        super().__init__(model)
        self._own = own
        weights = model.trainable_weights

        def loss_of(x: Any, y: Any) -> Any:
            return model.compute_loss(x, y, model(x, training=True), training=True)

        forward = torch.compile(loss_of) if compiled.jit and own is not None else loss_of

        def train_step(x: Any, y: Any) -> Any:
            model.zero_grad()
            loss = forward(x, y)
            loss.backward()
            if own is None:
                with torch.no_grad():
                    model.optimizer.apply([one.value.grad for one in weights], weights)
            else:
                own.step()
            return loss.detach()

        self._train = torch.compile(train_step) if compiled.jit and own is None else train_step

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self._model.train()

    def updates(self) -> int:
        return int(self._model.optimizer.iterations.value) if self._own is None else _updates_of(self._own)


class _Native(_Steps):
    """The twin."""

    def __init__(self, model: Any, workload: str, compiled: Compiled) -> None:
        super().__init__(model)
        device = model.trainable_variables[0].value.device
        network = NETWORKS[workload](model).to(device)
        self._pairs = pairs(network, model)
        with torch.no_grad():
            for parameter, weight, transposed in self._pairs:
                value = from_keras(weight.numpy(), tuple(parameter.shape), transposed)
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        self._optimizer = optimizer = _own_optimizer(model, [parameter for parameter, _, _ in self._pairs])
        forward = torch.compile(network) if compiled.jit else network
        network.train()

        def train_step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            logits = forward(x)
            if y.ndim < logits.ndim:
                loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten().long())
            else:
                loss = functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self._train = train_step

    def updates(self) -> int:
        return _updates_of(self._optimizer)

    def write_back(self) -> None:
        for parameter, weight, transposed in self._pairs:
            value = to_keras(parameter.detach().cpu().numpy(), tuple(weight.shape), transposed)
            weight.assign(np.ascontiguousarray(value))


class RMSprop(torch.optim.Optimizer):  # type: ignore[misc]
    """Keras's RMSprop as an optimizer of PyTorch."""

    def __init__(self, parameters: Sequence[Any], options: interface.RMSprop) -> None:
        super().__init__(parameters, {})
        self.options, self.count = options, 0
        self._parameters = list(parameters)
        self._squares = [torch.zeros_like(one) for one in parameters]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Update the parameters."""
        options = self.options
        gradients: Any = [one.grad for one in self._parameters]
        rate = options.rate / (1 + options.decay * self.count)
        torch._foreach_mul_(self._squares, options.rho)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - options.rho)
        roots = torch._foreach_add(self._squares, options.epsilon)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(self._parameters, gradients, roots, -rate)
        self.count += 1


def _own_optimizer(model: Any, parameters: Sequence[Any]) -> Any:
    """Return PyTorch's optimizer of these parameters, with the options of the model's."""
    options = optimizer_of(model)
    if isinstance(options, interface.RMSprop):
        return RMSprop(parameters, options)
    return torch.optim.AdamW(
        parameters,
        options.rate,
        (options.beta_1, options.beta_2),
        options.epsilon,
        options.weight_decay,
    )


def _updates_of(optimizer: Any) -> int:
    if isinstance(optimizer, RMSprop):
        return optimizer.count
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)


def _weights(model: Any) -> list[Any]:
    return [one.value for one in model.trainable_weights]
