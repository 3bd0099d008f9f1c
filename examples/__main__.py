"""All examples, one after the other: `make examples` runs them in short form.

Each trains something small with a layer of fast-lapsum and with the usual ways, over five paired
seeds, writes its results to results/examples and draws them into docs/figures. A file that is there
is gone on with.

    python examples --short    # half a minute, into build/examples
    python examples            # half an hour on one core, resumable
    python examples/pruning.py --help
"""

from __future__ import annotations

import pruning
import ranking
import routed_language_model
import sparse_autoencoder
import token_selection
import top_k_loss
from study import main

STUDIES = tuple(
    script.STUDY
    for script in (
        *(sparse_autoencoder, routed_language_model, token_selection),
        *(pruning, top_k_loss, ranking),
    )
)

if __name__ == "__main__":
    main(*STUDIES, text=__doc__)
