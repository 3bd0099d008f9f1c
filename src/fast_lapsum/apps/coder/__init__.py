"""A differentiable sparse image coder: training, and the building blocks on their own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blocks import address_bits, anneal, bounded, dither_quantise, step_size
    from .code import Band, Code, Place, layout
    from .dictionary import decode_picture
    from .settings import Fit, Profile, Progress, Settings
    from .train import fit

__all__ = [
    "Band",
    "Code",
    "Fit",
    "Place",
    "Profile",
    "Progress",
    "Settings",
    "address_bits",
    "anneal",
    "bounded",
    "decode_picture",
    "dither_quantise",
    "fit",
    "layout",
    "step_size",
]
#: Loaded when asked for: the commands are here, too, and must start without the coder's packages.
_FOUND_IN = {
    "blocks": ("address_bits", "anneal", "bounded", "dither_quantise", "step_size"),
    "code": ("Band", "Code", "Place", "layout"),
    "dictionary": ("decode_picture",),
    "settings": ("Fit", "Profile", "Progress", "Settings"),
    "train": ("fit",),
}


def __getattr__(name: str) -> Any:
    for module, names in _FOUND_IN.items():
        if name in names:
            try:
                return getattr(import_module(f".{module}", __name__), name)
            except ModuleNotFoundError as error:
                if (error.name or "fast_lapsum").partition(".")[0] == "fast_lapsum":
                    raise
                raise ModuleNotFoundError(
                    f"{error.name} is missing. Get it with: pip install 'fast-lapsum[apps]' "
                    "(in a checkout: pip install '.[apps]')",
                    name=error.name,
                ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
