"""Options that several commands of the image coder share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fast_lapsum.bench import options

Steps = Annotated[
    int | None,
    typer.Option(
        help="Steps of training; by default 40, and 200 of the plain coder.",
        parser=options.whole(at_least=1),
        metavar="INTEGER",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seed of the noise in training.", parser=options.whole(at_least=0), metavar="INTEGER"
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        help="Also write settings, size, quality, times and environment to this file (JSON).",
        metavar="FILE",
    ),
]

REMEDY = "Get it with: pip install 'fast-lapsum[apps]' (in a checkout: pip install '.[apps]')"
NO_MEMORY = (
    "more memory is needed than there is. Decoding takes up to 72 bytes a pixel, training more;"
    " with --max-pixels larger pictures are refused at once"
)
