"""Attacks by name, with their settings after colons: ``sigma-zero:step=0.3:sigma=1e-4``.

A setting of several numbers has slashes between them: ``ours:colour_step=0.3/0.02``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from . import dense, ours, paper
from .baselines import adapters, pgd_l0, sigma_zero, sparse_fool, sparse_pgd
from .protocol import Attack, Result


class MethodError(ValueError):
    """There is no such method, or it has no such setting."""


class Method(NamedTuple):
    """How to make an attack, and the settings that it has if none are given."""

    make: Callable[[Any], Attack]
    #: A NamedTuple with a default for everything.
    settings: Any


def _with_settings(attack: Attack) -> Callable[[Any], Attack]:
    """For attacks whose ``run`` takes its settings as a keyword."""
    run: Callable[..., Result] = attack.run
    return lambda settings: attack._replace(run=partial(run, settings=settings))


METHODS: dict[str, Method] = {
    "ours": Method(_with_settings(ours.OURS), ours.DEFAULT),
    # What the operator brings: the same attack without it.
    "no-operator": Method(_with_settings(ours.OURS), ours.DEFAULT._replace(operator=False)),
    # What the choice of the class brings, likewise.
    "no-race": Method(_with_settings(ours.OURS), ours.DEFAULT._replace(classes=0)),
    "paper-recipe": Method(_with_settings(paper.PAPER), paper.DEFAULT),
    "dense": Method(_with_settings(dense.DENSE), paper.DEFAULT._replace(first_share=2 / 255)),
    "sigma-zero": Method(sigma_zero.attack, sigma_zero.Settings()),
    "sparse-pgd": Method(sparse_pgd.attack, sparse_pgd.Settings()),
    "pgd-l0": Method(pgd_l0.attack, pgd_l0.Settings()),
    "sparse-fool": Method(sparse_fool.attack, sparse_fool.Settings()),
}
#: What attack-bench runs: everything written here, the paper's recipe and the control included.
DEFAULT = tuple(METHODS)


def method(text: str) -> Attack:
    """The attack under a name of ``METHODS`` or of an installed adapter, as ``text`` sets it.

    >>> method("sigma-zero:step=0.3").name
    'sigma-zero:step=0.3'
    """
    name, *changes = text.split(":")
    if name not in METHODS:
        others = {adapter.name: adapter for adapter in adapters.installed()}
        if text in others:
            return adapters.attack(others[text])
        raise MethodError(f"'{name}' is no method; expected {', '.join([*METHODS, *others])}")
    found = METHODS[name]
    settings = found.settings
    for change in changes:
        settings = _changed(name, settings, change)
    return found.make(settings)._replace(name=text)


def base_name(text: str) -> str:
    """The method's name without its settings.

    >>> base_name("sigma-zero:step=0.3")
    'sigma-zero'
    """
    return text.partition(":")[0]


def _changed(name: str, settings: Any, change: str) -> Any:
    """``settings`` with one ``field=value``, read as what the default is."""
    field, equals, text = change.partition("=")
    known = settings._asdict()
    if not equals or field not in known:
        raise MethodError(f"{name} has no setting '{field}'; expected {', '.join(known)}")
    try:
        return settings._replace(**{field: _read(text, known[field])})
    except ValueError:
        kind = type(known[field]).__name__
        raise MethodError(f"{name}: {field} is '{text}', expected a {kind}") from None


def _read(text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(default, tuple):
        parts = text.split("/")
        if len(parts) != len(default):
            raise ValueError(text)
        return tuple(_read(part, one) for part, one in zip(parts, default, strict=True))
    if isinstance(default, int) or default is None:
        return int(text)
    return float(text) if isinstance(default, float) else text
