"""Pruning by soft masks with an exact budget, which end as hard masks of exactly that many ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.utils import parametrize

from ._arguments import check_flag, check_number
from ._prune_arguments import check_groups, checked_density, checked_names, checked_scope
from .functional import soft_topk
from .many import soft_topk_list
from .selection import hard_topk_mask


def soften(
    module: Module,
    names: Iterable[str] | None = None,
    density: float | None = None,
    scope: str = "global",
    *,
    temperature: float = 0.01,
    scores: Literal["magnitude", "learned"] = "magnitude",
    hard: bool = False,
) -> SoftPruning:
    """Multiply parameters with soft masks that keep an exact share of them.

    A parametrization is put on every parameter: in training a weight is ``weight * mask`` with the
    soft mask of its scores, so that gradients tell which weights to keep. In ``eval()`` masks are
    hard: the model that :meth:`SoftPruning.finalize` would leave. Each layer goes by its own flag.
    An optimiser that was made before goes on with the parameters it has. Learned scores are new
    ones, which it would not move: for ``scores="learned"`` create the optimiser after ``soften``.
    With one budget over all parameters activation checkpointing needs ``use_reentrant=False``.

    Args:
        module: the model.
        names: of parameters, as :meth:`~torch.nn.Module.named_parameters` has them; None takes all
            that are called ``weight`` and have two dimensions or more.
        density: the share that is kept, in [0, 1].
        scope: ``"global"`` for one budget over all parameters, ``"layer"`` for one in each, or
            ``"2:4"``, and alike, to keep 2 of every 4 neighbours along the inputs of a layer, which
            has its density by itself.
        temperature: of the soft masks, in units of the scores. Anneal it with
            :class:`fast_lapsum.nn.TemperatureSchedule`.
        scores: ``"magnitude"`` for the absolute values of the weights, or ``"learned"`` for
            parameters of their own, which start there and are for the optimiser to find.
        hard: hard masks in training, too, with the soft masks' gradients.

    Returns:
        What holds density and temperature, and ends the pruning.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        >>> pruning = soften(model, density=0.25)
        >>> model(torch.randn(2, 8)).shape
        torch.Size([2, 4])
        >>> masks = pruning.finalize()
        >>> sum(int(mask.sum()) for mask in masks.values()), pruning.count
        (48, 48)
        >>> sorted(model.state_dict())
        ['0.bias', '0.weight', '1.bias', '1.weight']
    """
    if not isinstance(module, Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    pattern = checked_scope(scope, density)
    if scores not in ("magnitude", "learned"):
        raise ValueError(f"scores must be 'magnitude' or 'learned', got scores={scores!r}")
    found = _chosen_parameters(module, names)
    if pattern is not None:
        for name, owner, attribute in found:
            check_groups(name, getattr(owner, attribute), pattern[1])
        density = pattern[0] / pattern[1]
    assert density is not None
    return SoftPruning(module, found, density, scope, pattern, temperature, scores, hard)


class SoftPruning:
    """Soft masks of a model's parameters; made by :func:`soften`.

    Attributes:
        names: the parameters that are pruned.
        scope: over what a budget reaches.
    """

    def __init__(
        self,
        module: Module,
        found: list[tuple[str, Module, str]],
        density: float,
        scope: str,
        pattern: tuple[int, int] | None,
        temperature: float,
        scores: str,
        hard: bool,
    ) -> None:
        self.names = [name for name, _, _ in found]
        self.scope, self._pattern, self._hard = scope, pattern, check_flag("hard", hard)
        self._density = checked_density(density)
        self.temperature = temperature
        self._found = found
        self._masks: list[Tensor] | None = None
        self._last_masks: list[Tensor] | None = None
        self._sizes: list[int] = []
        self._members: list[tuple[Any, _SoftMask]] = []
        for place, (_, owner, attribute) in enumerate(found):
            weight = getattr(owner, attribute)
            self._sizes.append(weight.numel())
            own = Parameter(weight.detach().abs().clone()) if scores == "learned" else None
            mask = _SoftMask(self, place, own)
            mask.train(owner.training)
            parametrize.register_parametrization(owner, attribute, mask, unsafe=True)
            self._members.append((owner.parametrizations[attribute], mask))  # type: ignore[index]
        self._hooks = []
        if scope == "global":
            self._hooks = [
                module.register_forward_pre_hook(self._before),
                module.register_forward_hook(self._after, always_call=True),
            ]

    @property
    def temperature(self) -> float:
        """The temperature of the soft masks."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        if not 0 <= check_number("temperature", value) < math.inf:
            raise ValueError(f"temperature must be finite and at least 0, got temperature={value}")
        self._temperature = float(value)

    @property
    def density(self) -> float:
        """The share that is kept; it can be set until :meth:`finalize`, but for a pattern."""
        return self._density

    @density.setter
    def density(self, value: float) -> None:
        if self._pattern is not None:
            raise ValueError(f"density follows from scope={self.scope!r}, got density={value}")
        if not self._members:
            raise RuntimeError(
                f"density must be set before finalize, which was called, got density={value}"
            )
        self._density = checked_density(value)

    @property
    def count(self) -> int:
        """How many weights are kept in all."""
        if self.scope == "global":
            return self._count(sum(self._sizes))
        return sum(self._count(size) for size in self._sizes)

    def _count(self, size: int) -> int:
        return math.floor(self._density * size + 0.5)

    def state_dict(self) -> dict[str, float]:
        """Density and temperature, which the model's state dict has not."""
        return {"density": self._density, "temperature": self._temperature}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on with a saved density and temperature."""
        if set(state) != {"density", "temperature"}:
            raise ValueError(f"state must have density and temperature, got {sorted(state)}")
        self._density = checked_density(state["density"])
        self.temperature = state["temperature"]

    @torch.no_grad()
    def finalize(self, fixed: bool = False) -> dict[str, Tensor]:
        """End the pruning: parameters are what they were before, with zeros where masks have them.

        Args:
            fixed: leave the hard masks as parametrizations, so that zeros stay zeros in further
                training; ``torch.nn.utils.parametrize.remove_parametrizations`` ends that.

        Returns:
            The boolean masks by parameter.

        Raises:
            ValueError: some weights, or learned scores, are NaN; nothing has changed then.
        """
        if not self._members:
            raise RuntimeError("finalize must be called once, and was called before")
        for name, (parametrized, member) in zip(self.names, self._members, strict=True):
            chosen = parametrized.original, member.scores_of(parametrized.original)
            if any(bool(values.isnan().any()) for values in chosen):
                raise ValueError(f"finalize cannot choose weights by NaN, got some in {name!r}")
        masks = [mask == 1 for mask in self._all_masks([True] * len(self._members))]
        for hook in self._hooks:
            hook.remove()
        for (_, owner, attribute), mask in zip(self._found, masks, strict=True):
            parametrize.remove_parametrizations(owner, attribute, leave_parametrized=False)
            getattr(owner, attribute).masked_fill_(~mask, 0)  # an infinity times 0 is NaN
            if fixed:
                parametrize.register_parametrization(owner, attribute, FixedMask(mask), unsafe=True)
        self._members, self._masks, self._last_masks = [], None, None
        return dict(zip(self.names, masks, strict=True))

    def _before(self, module: Module, arguments: Any) -> None:
        """One solve for all parameters of a forward pass."""
        self._masks = self._all_masks(self._are_hard())

    def _after(self, module: Module, arguments: Any, output: Any) -> None:
        masks, self._masks = self._masks, None
        # A compiler computes layers again by itself; what a transform makes must not outlive it.
        is_traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if masks is not None and torch.is_grad_enabled() and not is_traced:
            self._last_masks = [_without_graph(mask) for mask in masks]

    def mask_of(self, place: int, mask: _SoftMask, weight: Tensor) -> Tensor:
        """The mask of one parameter, now."""
        if self.scope != "global":
            return self._own_mask(mask.scores_of(weight), is_hard=not mask.training)
        if self._masks is not None:
            return self._masks[place]
        # A layer that is computed again during the backward pass has the masks of its forward pass.
        if self._last_masks is not None and torch._C._current_graph_task_id() != -1:
            return self._last_masks[place]
        return self._all_masks(self._are_hard())[place]

    def _are_hard(self) -> list[bool]:
        """Of each parameter, whether its layer is evaluated."""
        return [not mask.training for _, mask in self._members]

    def _all_masks(self, are_hard: list[bool]) -> list[Tensor]:
        scores = [mask.scores_of(owner.original) for owner, mask in self._members]
        if self.scope == "global":
            found = {
                is_hard: _masks_over(scores, self.count, self._settings(is_hard))
                for is_hard in (False, True)
                if is_hard in are_hard
            }
            return [found[is_hard][place] for place, is_hard in enumerate(are_hard)]
        return [self._own_mask(one, is_hard) for one, is_hard in zip(scores, are_hard, strict=True)]

    def _own_mask(self, scores: Tensor, is_hard: bool) -> Tensor:
        if self._pattern is None:
            count = self._count(scores.numel())
            return _mask(scores, count, self._settings(is_hard), dim=None)
        kept, size = self._pattern
        last = scores.movedim(1, -1)
        grouped = last.reshape(*last.shape[:-1], -1, size)
        mask = _mask(grouped, kept, self._settings(is_hard), dim=-1)
        return mask.flatten(-2).movedim(-1, 1)

    def _settings(self, is_hard: bool) -> _Settings:
        return _Settings(self._temperature, self._hard, is_hard)

    def __getstate__(self) -> dict[str, Any]:
        """Masks are those of a forward pass, which a copy has not made."""
        return {**self.__dict__, "_masks": None, "_last_masks": None}

    def __repr__(self) -> str:
        return (
            f"SoftPruning({len(self.names)} parameters, density={self._density:g}, "
            f"scope={self.scope!r}, temperature={self._temperature:g})"
        )


class _Settings(NamedTuple):
    """How a mask is made: soft, straight through, or hard and without a gradient."""

    temperature: float
    hard: bool
    is_hard: bool


class FixedMask(Module):
    """A parametrization that keeps zeros where they are, see :meth:`SoftPruning.finalize`."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight, masked."""
        return weight.masked_fill(~self.mask, 0)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is put in place of the weight is masked when it is read."""
        return weight


class _SoftMask(Module):
    """The parametrization of one parameter."""

    scores: Parameter | None

    def __init__(self, pruning: SoftPruning, place: int, scores: Parameter | None) -> None:
        super().__init__()
        self.pruning: SoftPruning = pruning
        self.place = place
        self.register_parameter("scores", scores)

    def scores_of(self, weight: Tensor) -> Tensor:
        return weight.abs() if self.scores is None else self.scores

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.pruning.mask_of(self.place, self, weight).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight


def _mask(scores: Tensor, k: int, settings: _Settings, dim: int | None) -> Tensor:
    if settings.is_hard:
        return hard_topk_mask(scores.detach(), k, dim=dim)
    return soft_topk(scores, k, settings.temperature, dim=dim, hard=settings.hard)


def _masks_over(scores: list[Tensor], k: int, settings: _Settings) -> list[Tensor]:
    """Masks with one budget over several tensors, which are read where they lie."""
    if settings.is_hard:
        return soft_topk_list([one.detach() for one in scores], k, 0.0, hard=True)
    return soft_topk_list(scores, k, settings.temperature, hard=settings.hard)


def _without_graph(mask: Tensor) -> Tensor:
    """The values of a mask for layers that are computed again, for their values alone."""
    values = mask.detach().requires_grad_(mask.requires_grad)
    if values.requires_grad:
        values.register_hook(_refuse_gradient)  # type: ignore[no-untyped-call]
    return values


def _refuse_gradient(gradient: Tensor) -> None:
    raise RuntimeError(
        "a model with scope='global' must be checkpointed with use_reentrant=False, "
        "got use_reentrant=True, by which gradients of the masks would be lost"
    )


def _chosen_parameters(
    module: Module, names: Iterable[str] | None
) -> list[tuple[str, Module, str]]:
    """Name, module and attribute of every parameter to prune."""
    every = dict(module.named_parameters(remove_duplicate=False))
    is_default = names is None
    if names is None:
        names = [
            name
            for name, value in every.items()
            if name.rpartition(".")[2] == "weight" and value.dim() > 1
        ]
    else:
        names = checked_names(names)
    found = []
    for name in dict.fromkeys(names):
        if name not in every:
            _check_is_left(module, name)
            few = list(islice((one for one in every if _is_accepted(module, every, one)), 9))
            known = ", ".join(few[:8]) + (", ..." if len(few) > 8 else "")
            raise ValueError(
                f"names must be of parameters of the module ({known or 'none is left'}), "
                f"got {name!r}"
            )
        _check_name(module, every, name)
        path, _, attribute = name.rpartition(".")
        found.append((name, module.get_submodule(path), attribute))
    if not found:
        _check_is_left(module)
        if is_default:
            raise ValueError(
                "module must have a parameter that is called weight and has two dimensions or "
                f"more, or names must be given, got {type(module).__name__} without one"
            )
        raise ValueError("names must name at least one parameter, got none")
    return found


def _check_name(module: Module, every: dict[str, Parameter], name: str) -> None:
    """ValueError for a parameter that cannot be pruned: it is shared, or has a mask already."""
    twins = [other for other, value in every.items() if value is every[name] and other != name]
    if twins:
        raise ValueError(
            f"names must be of parameters that modules have for themselves, got {name!r}, "
            f"which is {twins[0]!r}, too"
        )
    before, inside, after = f".{name.rpartition('.')[0]}.".partition(".parametrizations.")
    if inside:  # the parameter that a mask is put on has this name
        _check_is_left(module, f"{before}.{after.partition('.')[0]}".strip("."))


def _is_accepted(module: Module, every: dict[str, Parameter], name: str) -> bool:
    try:
        _check_name(module, every, name)
    except ValueError:
        return False
    return True


#: What ends the pruning of a parameter that has such a mask.
_WAYS_OUT: dict[type, str] = {
    _SoftMask: "call finalize() of what soften returned",
    FixedMask: "call torch.nn.utils.parametrize.remove_parametrizations, which frees its zeros,",
}


def _check_is_left(module: Module, name: str | None = None) -> None:
    """ValueError if a mask is on this parameter already, or on any."""
    for path, owner in module.named_modules():
        if not parametrize.is_parametrized(owner):
            continue
        for attribute, put_on in owner.parametrizations.items():
            pruned = f"{path}.{attribute}" if path else attribute
            if name not in (None, pruned):
                continue
            for how in filter(None, (_WAYS_OUT.get(type(one)) for one in put_on)):
                raise ValueError(
                    f"names must be of parameters that are not pruned already, got {pruned!r}: "
                    f"{how} first"
                )
