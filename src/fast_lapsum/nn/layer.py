"""The soft top-k layer, whose budget and temperature are given, set, passed or learned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._arguments import Dim, check_dim_kinds, check_dims, check_number
from .._collectives import group_of, noted_name
from ..functional import soft_topk
from .kept import WITHOUT_FLOAT64, Keeping, is_traced, write
from .rank_sums import check_process_group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: The sigmoid of a logit of so many is neither 0 nor 1 in float64.
_MOST_LOGIT = 36.0
#: The exponential of so many is neither 0 nor infinite in float32.
_MOST_LOG_TEMPERATURE = 80.0


class SoftTopK(Keeping):
    """Exact-budget soft top-k as a layer, with a fixed or learned budget and temperature.

    k and the temperature are given as a number or as a tensor, of one value or one per row. They
    can be set (``layer.k = 5``) or passed for one call. A tensor is kept as it is: a
    :class:`~torch.nn.Parameter` is a parameter of the layer, and any tensor that requires a
    gradient receives it. What is not a parameter is a buffer and part of the state dict.

    With ``learn_k`` and ``learn_temperature`` every value that an optimiser can reach is legal: k
    is ``num_scores * sigmoid(budget_logit)`` and the temperature ``exp(log_temperature)``. The
    gradient of ``budget_logit`` is that of k, not its product with dk / dlogit =
    k (1 - k / num_scores), which grows with the number of scores: mirror descent, where steps are
    measured in logits and gradients in k. So one learning rate serves rows of 100 and of a million
    scores, with plain gradient descent and with Adam, and clipping by the norm of all gradients
    leaves the rest of a model its share. For the plain derivative give k as a Parameter. A
    checkpoint has the logit: in a layer with another ``num_scores`` it is the same share of them.

    Parameters and buffers of the layer stay float32 and float64 under ``layer.half()`` and
    ``layer.bfloat16()``. A kept threshold is not part of the state dict, and is off in graphs
    (``torch.compile``, ``torch.export``, ``torch.func``), which would have to hand it on, and for
    hard masks.

    Args:
        k: the budget, or where learning starts.
        temperature: the temperature, or where learning starts.
        num_scores: the row length n, which scores are checked for; needed when ``learn_k``. With a
            mask or ``clamp`` rows may have another length.
        learn_k: make k a parameter, kept inside (0, num_scores).
        learn_temperature: make the temperature a parameter, kept positive.
        dim: the dimension to select along, or several, which share the budget; None is all.
        largest: select the largest scores, or the smallest.
        clamp: limit k to the number of scores that take part in a row, so that a short one is taken
            whole, where without it such a row has no answer (NaN). A hard mask rounds k down, too,
            so that it can be learned.
        hard: exactly k ones forward, soft gradient backward.
        validate: raise for the first row without an answer, instead of NaN; this waits for a GPU.
            In a compiled graph it is the only check of k: numbers are tensors there.
        process_group: a process group over which rows are spread along ``dim``; see ``group`` of
            :func:`~fast_lapsum.soft_topk`. k, the temperature and ``num_scores`` are of whole rows.
            A copy of the layer has the same group, and a pickle names it.
        keep_threshold: start each solve from the last call's threshold. It changes the speed, and
            the result by rounding at most. The CPU kernel needs no such start, and mostly takes
            longer with it; it is for solvers in plain torch, and for rows that a GPU holds.

    Example:
        >>> layer = SoftTopK(k=2, temperature=0.1, num_scores=4, learn_k=True)
        >>> mask = layer(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))
        >>> round(mask.sum().item(), 4)
        2.0
        >>> layer = SoftTopK(k=2)
        >>> layer.k = 1  # from now on
        >>> scores = torch.tensor([4.0, 3.0, 1.0, 0.0])
        >>> [round(mask.sum().item(), 4) for mask in (layer(scores), layer(scores, k=3))]
        [1.0, 3.0]
    """

    budget_logit: Parameter | None
    log_temperature: Parameter | None

    def __init__(
        self,
        k: float | Tensor,
        temperature: float | Tensor = 1.0,
        *,
        num_scores: int | None = None,
        learn_k: bool = False,
        learn_temperature: bool = False,
        dim: Dim = -1,
        largest: bool = True,
        clamp: bool = False,
        hard: bool = False,
        validate: bool = False,
        keep_threshold: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.num_scores = _checked_length(num_scores)
        self.dim = check_dim_kinds(dim)
        self.largest, self.clamp, self.hard = largest, clamp, hard
        self.validate, self.keep_threshold = validate, keep_threshold
        self.process_group = process_group
        if process_group is not None:
            check_process_group(process_group)
            if keep_threshold:
                raise ValueError(
                    "keep_threshold must be False with process_group, whose calls take no start"
                )
        self._last_threshold: Tensor | None = None
        self._last_scores: tuple[torch.Size, torch.device] | None = None
        if learn_k and num_scores is None:
            raise ValueError("num_scores must be given when learn_k=True, got num_scores=None")
        if (learn_k or isinstance(k, Parameter)) and hard and not clamp:
            raise ValueError(
                "hard=True needs a whole k, and learn_k=True (or a Parameter as k) does not keep "
                "it whole: expected clamp=True, which rounds it down, or at most one of the two"
            )
        k, temperature = self._checked_k(k), _checked_temperature(temperature)
        learn_k &= not isinstance(k, Parameter)  # which is learned as it is
        learn_temperature &= not isinstance(temperature, Parameter)
        self.budget_logit = Parameter(self._logit(k)) if learn_k else None
        self.log_temperature = Parameter(_logarithm(temperature)) if learn_temperature else None
        self._keep("given_k", None if learn_k else k)
        self._keep("given_temperature", None if learn_temperature else temperature)
        self._start = tuple(
            value.detach().clone() if isinstance(value, Tensor) else value
            for value in (k, temperature)
        )

    def reset_parameters(self) -> None:
        """Back to the budget and the temperature that the layer was made with.

        Tensors that were given on the meta device have no values to go back to: they become NaN,
        until a checkpoint is loaded or they are set.
        """
        for name, learned, start in zip(
            ("k", "temperature"),
            (self.budget_logit, self.log_temperature),
            self._start,
            strict=True,
        ):
            kept = self._kept(f"given_{name}") if learned is None else learned
            if not isinstance(start, Tensor):
                setattr(self, name, start)
            elif not start.is_meta:
                setattr(self, name, start.to(kept.device, copy=True))
            elif kept.is_floating_point():
                write(kept, math.nan)
        self._last_threshold = None

    @property
    def k(self) -> float | Tensor:
        """The budget: a number, or a tensor if it was given as one or is learned."""
        if self.budget_logit is None:
            return self._read("given_k")
        return self._learned_k()

    @k.setter
    def k(self, value: float | Tensor) -> None:
        value = self._checked_k(value)
        if self.budget_logit is None:
            self._set("given_k", value)
            return
        _check_fits("k", "learn_k", value, self.budget_logit)
        write(self.budget_logit, self._logit(value))

    @property
    def temperature(self) -> float | Tensor:
        """The temperature: a number, or a tensor if it was given as one or is learned."""
        if self.log_temperature is None:
            return self._read("given_temperature")
        return self._learned_temperature()

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        value = _checked_temperature(value)
        if self.log_temperature is None:
            self._set("given_temperature", value)
            return
        _check_fits("temperature", "learn_temperature", value, self.log_temperature)
        write(self.log_temperature, _logarithm(value))

    def __setattr__(self, name: str, value: Any) -> None:
        # torch would register a Parameter under the name of the property.
        if name in ("k", "temperature"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        k: float | Tensor | None = None,
        temperature: float | Tensor | None = None,
    ) -> Tensor:
        """The mask of ``scores``; ``mask`` marks with True the scores that take part.

        ``k`` and ``temperature`` hold for this call, in place of the layer's own.
        """
        is_whole = mask is None and not self.clamp and self.process_group is None
        if self.num_scores is not None and is_whole:
            self._check_length(scores)
        if k is None:
            k = self._value("given_k") if self.budget_logit is None else self._learned_k()
        if temperature is None:
            learned = self.log_temperature is not None
            temperature = (
                self._learned_temperature() if learned else self._value("given_temperature")
            )
        if not self.keep_threshold or self.hard or is_traced():
            return soft_topk(
                scores,
                k,
                temperature,
                dim=self.dim,
                largest=self.largest,
                mask=mask,
                clamp=self.clamp,
                hard=self.hard,
                validate=self.validate,
                group=self.process_group,
            )
        last = self._last_threshold
        out, threshold = soft_topk(
            scores,
            k,
            temperature,
            dim=self.dim,
            largest=self.largest,
            mask=mask,
            clamp=self.clamp,
            validate=self.validate,
            return_threshold=True,
            warm_start=last if last is not None and self._last_scores == _kind(scores) else None,
        )
        if type(threshold) is Tensor:  # a fake one would be no start for real scores
            self._last_threshold, self._last_scores = threshold, _kind(scores)
        return out

    def _check_length(self, scores: Tensor) -> None:
        dims = check_dims(scores, self.dim)
        count = 1
        for dim in (dims,) if isinstance(dims, int) else dims:
            count = count * scores.shape[dim]
        if count != self.num_scores:
            raise ValueError(
                f"scores must have num_scores={self.num_scores} entries along dim={self.dim}, "
                f"got shape {tuple(scores.shape)}; other numbers need a mask or clamp=True"
            )

    def _learned_k(self) -> Tensor:
        """The value of n sigmoid(logit) with the gradient of the logit itself."""
        assert self.budget_logit is not None
        assert self.num_scores is not None
        has_float64 = self.budget_logit.device.type not in WITHOUT_FLOAT64
        logit = self.budget_logit.to(torch.float64 if has_float64 else torch.float32)
        share = torch.sigmoid(logit.detach().clamp(-_MOST_LOGIT, _MOST_LOGIT))
        return self.num_scores * share + (logit - logit.detach())

    def _learned_temperature(self) -> Tensor:
        assert self.log_temperature is not None
        return self.log_temperature.clamp(-_MOST_LOG_TEMPERATURE, _MOST_LOG_TEMPERATURE).exp()

    def _checked_k(self, k: float | Tensor) -> float | Tensor:
        if isinstance(k, Tensor):
            return _checked_tensor("k", k)
        k = check_number("k", k)
        most = None if self.clamp else self.num_scores
        if not 0 <= k < math.inf or (most is not None and k > most):
            limit = "inf)" if most is None else f"{most}]"
            raise ValueError(f"k must lie in [0, {limit}, got k={k}")
        if self.hard and not self.clamp and k != int(k):
            raise ValueError(f"k must be a whole number for hard=True, got k={k}")
        return float(k)

    def _logit(self, k: float | Tensor) -> Tensor:
        """Where a learned k begins: at ``k``, or the next number above, which rounds down to it."""
        assert self.num_scores is not None
        if not _inside(k, self.num_scores):
            raise ValueError(
                f"k must lie strictly inside (0, {self.num_scores}) to be learned, got k={k}"
            )
        device = k.device if isinstance(k, Tensor) else torch.get_default_device()
        dtype = torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
        start = torch.as_tensor(k, dtype=dtype, device=device).detach()
        logit = torch.log(start / (self.num_scores - start)).float()
        is_less = self.num_scores * torch.sigmoid(logit.to(dtype)) < start
        return torch.where(is_less, logit.nextafter(torch.full_like(logit, math.inf)), logit)

    def _check_number(self, name: str, value: float) -> None:
        if name == "given_k":
            self._checked_k(value)
        else:
            _checked_temperature(value)

    def __getstate__(self) -> dict[str, Any]:
        name = noted_name(self.process_group)
        return {**super().__getstate__(), "_last_threshold": None, "process_group": name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_fixed_k" not in state:
            name = state.get("process_group")
            group = None if name is None else group_of(name)
            super().__setstate__({"validate": False, **state, "process_group": group})
            return
        # A whole layer that fast-lapsum 0.1 pickled, with numbers that are no buffers.
        start = state["_fixed_k"], state["_fixed_temperature"]
        unknown_then = {"_start": start, "_numbers": {}, "clamp": False, "validate": False}
        unknown_then["process_group"] = None
        super().__setstate__({**state, **unknown_then})
        self._keep("given_k", start[0] if self.budget_logit is None else None)
        self._keep("given_temperature", start[1] if self.log_temperature is None else None)

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        learned = [
            name
            for name, own in (("k", "budget_logit"), ("temperature", "log_temperature"))
            if {own, f"given_{name}"} & {key for key, _ in self.named_parameters()}
        ]
        return (
            f"k={_shown(self.k)}, temperature={_shown(self.temperature)}, dim={self.dim}, "
            f"largest={self.largest}, hard={self.hard}"
            + (", clamp=True" if self.clamp else "")
            + (", validate=True" if self.validate else "")
            + (f", process_group={noted_name(self.process_group)!r}" if self.process_group else "")
            + (f", learned={'+'.join(learned)}" if learned else "")
        )


def _checked_length(num_scores: Any) -> int | None:
    if num_scores is None:
        return None
    try:
        number = float(num_scores) if not isinstance(num_scores, (Tensor, str, bool)) else None
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"num_scores must be an int, got {type(num_scores).__name__}")
    if number % 1 != 0 or number < 0:  # NaN and infinity are not
        raise ValueError(f"num_scores must be a whole number of scores, got num_scores={number}")
    return int(number)


def _check_fits(name: str, learned: str, value: float | Tensor, parameter: Parameter) -> None:
    """Whether a learned value can be set to this: its parameter stays the one it is."""
    if isinstance(value, Parameter):
        raise TypeError(
            f"{name} of a layer with {learned}=True has its own parameter, which takes over the "
            f"values of a number or a tensor; got a Parameter: give it to SoftTopK({name}=...)"
        )
    if not isinstance(value, Tensor):
        return
    try:
        value.expand(parameter.shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must be a number or broadcast to the shape {tuple(parameter.shape)} of the "
            f"parameter that is learned, got shape {tuple(value.shape)}"
        ) from None


def _checked_temperature(temperature: float | Tensor) -> float | Tensor:
    if isinstance(temperature, Tensor):
        return _checked_tensor("temperature", temperature)
    temperature = check_number("temperature", temperature)
    if not 0 <= temperature < math.inf:
        raise ValueError(
            f"temperature must be finite and at least 0, got temperature={temperature}"
        )
    return float(temperature)


def _checked_tensor(name: str, value: Tensor) -> Tensor:
    if value.is_complex() or value.dtype == torch.bool:
        dtype = str(value.dtype).removeprefix("torch.")
        raise TypeError(f"{name} must be a number or a tensor of real numbers, got {dtype}")
    return value


def _logarithm(temperature: float | Tensor) -> Tensor:
    """Where a learned temperature begins."""
    if not _inside(temperature, math.inf):
        raise ValueError(
            f"temperature must be above 0 and finite to be learned, got temperature={temperature}"
        )
    if isinstance(temperature, Tensor):
        return torch.log(temperature.detach()).float()
    return torch.tensor(math.log(temperature), dtype=torch.float32)


def _inside(value: float | Tensor, end: float) -> bool:
    """Whether all of it lies strictly between 0 and ``end``, as far as it is known."""
    if isinstance(value, Tensor):
        return value.is_meta or bool(((value > 0) & (value < end)).all())
    return 0 < value < end


def _kind(scores: Tensor) -> tuple[torch.Size, torch.device]:
    return scores.shape, scores.device


def _shown(value: float | Tensor) -> str:
    if not isinstance(value, Tensor):
        return f"{value:g}"
    if value.is_meta:
        return "meta"
    return f"{value.item():g}" if value.numel() == 1 else f"tensor of shape {tuple(value.shape)}"
