"""A differentiable sparse image coder: training, and the building blocks on their own."""

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
