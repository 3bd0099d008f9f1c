"""Numbers, tensors and parameters that a layer was given, kept as parts of its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from .._autograd import is_plain

#: Devices whose tensors cannot be float64.
WITHOUT_FLOAT64 = ("mps",)


class _Number(NamedTuple):
    """The number in a buffer, known without asking its device while the buffer is as it was."""

    value: float
    buffer: Tensor
    version: int
    was_asked: bool = False  # once, for what somebody else had written


class Keeping(torch.nn.Module):
    """A module whose values are given as numbers, tensors or Parameters, each under a name.

    A Parameter is a parameter of the module, the rest are buffers. A number is a float64 buffer,
    for the state dict and for compiled graphs, which then serve every number; eager calls take the
    number itself, the fastest way through an operator. Where somebody else writes to the buffer or
    puts another in its place (``torch.func.functional_call``), the buffer counts. What was written,
    as by a broadcast, the next call asks for, and it is a number again; on a GPU, which has to be
    waited for, once.
    """

    # Of the state dict. The first version, of fast-lapsum 0.1, has nothing that is not learned.
    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, _Number] = {}

    def _keep(self, name: str, value: float | Tensor | None) -> None:
        """Keep ``value`` under ``name``, in place of what was there; None reserves the name."""
        for place in (self._parameters, self._buffers, self._numbers):
            place.pop(name, None)
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif value is None or isinstance(value, Tensor):
            self.register_buffer(name, value)
        else:
            has_float64 = torch.get_default_device().type not in WITHOUT_FLOAT64
            dtype = torch.float64 if has_float64 else torch.float32
            self.register_buffer(name, torch.tensor(value, dtype=dtype))
            self._note(name, value)

    def _set(self, name: str, value: float | Tensor) -> None:
        """Another value: a Parameter that is there takes it over, unless another one comes."""
        kept = self._kept(name)
        if isinstance(kept, Parameter) and not isinstance(value, Parameter):
            write(kept, value)
        elif name in self._numbers and not isinstance(value, Tensor):
            kept.fill_(value)
            self._note(name, value)
        else:
            self._keep(name, value)
            if not isinstance(value, Tensor):
                self._buffers[name] = self._kept(name).to(kept.device)
                self._note(name, value)

    def _kept(self, name: str) -> Tensor:
        found = self._buffers.get(name)
        if found is None:
            found = self._parameters[name]
        assert found is not None
        return found

    def _note(self, name: str, value: float, was_asked: bool = False) -> None:
        buffer, before = self._kept(name), self._numbers.get(name)
        was_asked = was_asked or (before is not None and before.was_asked)
        self._numbers[name] = _Number(float(value), buffer, _version_of(buffer), was_asked)

    def _value(self, name: str) -> float | Tensor:
        """For a call: the number where it is known or can be asked for, else the tensor."""
        kept = self._kept(name)
        if torch.compiler.is_compiling():
            return kept
        number = self._numbers.get(name)
        if number is None or number.buffer is not kept:
            return kept
        if number.version != _version_of(kept):
            # A GPU is asked once: to wait for it whenever a broadcast has written would be a wait
            # in every step.
            if not _can_be_asked(kept) or (number.was_asked and not kept.is_cpu):
                return kept
            self._note(name, kept.item(), was_asked=True)
        return self._numbers[name].value

    def _read(self, name: str) -> float | Tensor:
        """For a reader: a number is a number, also if the device has to be asked for it."""
        found = self._value(name)
        is_number = isinstance(found, Tensor) and name in self._numbers
        if is_number and type(found) is Tensor and not found.is_meta and not is_traced():
            self._note(name, found.item())
            return self._numbers[name].value
        return found

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """Values move between devices, and not to a dtype of two bytes; a number stays float64."""
        before = {name: (self._read(name), self._kept(name)) for name in self._numbers}
        numbers = [buffer for _, buffer in before.values()]

        def move(tensor: Tensor) -> Tensor:
            if tensor.dtype == torch.float64:
                goes_to = fn(torch.empty(0, device=tensor.device)).device
                tensor = tensor.float() if goes_to.type in WITHOUT_FLOAT64 else tensor
            moved: Tensor = fn(tensor)
            is_number = any(tensor is number for number in numbers)
            if moved.dtype != tensor.dtype and (is_number or moved.dtype.itemsize < 4):
                moved = tensor.to(moved.device)
            return moved

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        for name, (value, buffer) in before.items():
            moved = self._kept(name)
            if moved is not buffer and not isinstance(value, Tensor):
                moved.fill_(value)  # to_empty has left nothing there
                self._note(name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        numbers = {name: self._read(name) for name in self._numbers}
        return {**self.__dict__, "_numbers": numbers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_numbers": {}})  # type: ignore[no-untyped-call]
        for name, value in state["_numbers"].items():
            self._note(name, value)

    def _check_number(self, name: str, value: float) -> None:
        """ValueError for a number that cannot be kept under this name."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        if local_metadata.get("version", 1) < 2:
            for name, value in (*self._parameters.items(), *self._buffers.items()):
                if value is not None and name.startswith("given_"):
                    state_dict.setdefault(prefix + name, value)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        *_, messages = rest
        for name in self._numbers:
            number = self._read(name)
            try:
                if not isinstance(number, Tensor):
                    self._check_number(name, number)
            except ValueError as error:
                messages.append(f"{prefix}{name}: {error}")


def write(parameter: Tensor, value: float | Tensor) -> None:
    """Put a value into a parameter; one number of the host without waiting for the device."""
    if isinstance(value, Tensor) and value.is_cpu and value.dim() == 0:
        value = value.item()
    with torch.no_grad():
        if isinstance(value, Tensor):
            parameter.copy_(value)
        else:
            parameter.fill_(value)


def is_traced() -> bool:
    """In a graph, or a ``torch.func`` transform, a tensor kept here would outlive its level."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _can_be_asked(tensor: Tensor) -> bool:
    """Whether the number in a tensor can become one of the host here."""
    is_recorded = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if is_recorded or not is_plain(tensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _version_of(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
