"""Sentences of pages that have numbers, and where each of these comes from.

Tables are made from results (marked_parts.py). A number in a sentence is found by the words around
it (prose_numbers.py), and is one of these:

- ``Tied``: a measurement. Its text has ``{}`` in the place of each number, and a function of
  prose_values.py says what results files have there. `make costs` writes the numbers anew.
- ``Stated``: no measurement. It says why: a limit, a constant, an argument, a figure of somebody
  else's, or something that was seen once, which the section then has to admit.

- ``Holds``: words without a number that measurements could make wrong, and what says that they are
  right.

tests/docs/test_prose_numbers.py asks that every number with a unit is one of the first two. What is
history is left alone (prose_numbers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import prose_values as values
from application_tables import NATIVE, RESIZED

#: Words that a section has to have if something in it was seen once and is in no file.
ADMITS = "no results file"

LIMIT = "a limit or an aim, which a command or a test has"
CODE = "what the code does: a constant, a count, a size by construction"
ARGUED = "a bound that the page argues for, or a test has"
EXAMPLE = "part of an example, a definition or a piece of advice"
OTHERS = "somebody else's figure, whose source the page names"
SEEN_ONCE = "seen once, in no results file"


class Tied(NamedTuple):
    """A sentence, or a part of one, with ``{}`` for every number out of results."""

    text: str
    numbers: Callable[[], Iterable[str]]


class Holds(NamedTuple):
    """Words that are true as long as results say so."""

    text: str
    is_true: Callable[[], bool]


class Stated(NamedTuple):
    """Words with a number that is no measurement; of a table, how its first line begins."""

    text: str
    why: str


Entry = Tied | Holds | Stated
PGD = "pgd-l0:step_per_pixel=0.002"
#: How docs/ranking.md names the rows that torchsort is timed with, and the case that they are.
TORCHSORT = (
    ("one of 1,000,000", "1,000,000"),
    ("64 of 1,000", "64 x 1,000"),
    ("one of 10,000,000", "10,000,000"),
)
#: Of docs/ranking.md: how our sorts were timed beside torch's, and whether they kept the limit.
SORTS = (
    ("device", "timings", "4,096 x 4,096", "kept"),
    ("clock", "wall", "4,096 x 4,096", "kept"),
    ("device", "timings", "1,000,000", "kept"),
    ("clock", "wall", "1,000,000", "missed"),
    ("device", "timings", "10,000,000", "none"),
)


def _sorts_are(kind: str, scores: str, verdict: str) -> bool:
    """Whether a line of that table says rightly that the limit is kept or missed."""
    return verdict == "none" or values.twice_the_sort(kind, scores) == (verdict == "kept")


HAAR, CODECS = "Haar top-k, best depth", ("JPEG", "JPEG 2000", "WebP", "JPEG XL")

PAGES: dict[str, tuple[Entry, ...]] = {
    "README.md": (
        Stated("read once or twice", CODE),
        Stated("at a tenth of the scores' standard deviation", EXAMPLE),
    ),
    "DESIGN.md": (
        Stated("read twice", CODE),
        Tied(
            "measurement: {} a row and call on a CPU, which is {} of 4,096", values.bytes_of_a_row
        ),
    ),
    "docs/attack.md": (
        Stated("k starts at 1% of the pixels", CODE),
        Stated("is decided twice", CODE),
        Stated("| exit code |", CODE),
        Stated("| heat | who |", CODE),
        Stated("four times as many pixels", CODE),
        Stated("with twice as many", CODE),
        Tied("Ours fools all {} pictures", lambda: [values.all_fooled()]),
        Holds(
            "lowest B in every case but one, whatever settings the others use",
            lambda: values.losses_of_the_attack() == ["bell_pepper"],
        ),
        Tied(
            "bell_pepper at 100 calls to PGD-L0, {} against {}.",
            lambda: values.totals("bell_pepper", RESIZED, 100, "ours", PGD),
        ),
        Tied("is {} to {} times higher native", lambda: values.dense(NATIVE)),
        Tied("and {} to {} times resized", lambda: values.dense(RESIZED)),
        Tied(
            "and has {} without the operator against {}.",
            lambda: values.totals("bell_pepper", RESIZED, 1000, "no-operator", "ours"),
        ),
        Tied(
            "lower without the operator on {} resized pictures, on most by a little, and at 1000 "
            "on {}.",
            values.without_operator,
        ),
        Holds(
            "at 300 calls and more by a fifth. That much is due to two pictures.",
            lambda: values.gap_without_operator() == ["0.8", "0.8"],
        ),
        Stated("at 300 calls and more by a fifth", EXAMPLE),
        Tied(
            "the medians are {} without it and {} with it at 300 calls, and {} and {} at 1000.",
            values.others_without_operator,
        ),
        Tied(
            "megalith falls from {} to {} at 300 calls",
            lambda: values.totals("megalith", RESIZED, 300, "no-race", "ours"),
        ),
        Tied(
            "than without it, at {} against {}.",
            lambda: values.totals("macaw_kodim23", NATIVE, 1000, "ours", "no-race"),
        ),
        Tied("by up to {} on twelve pictures and by {} on scuba_diver", values.chance),
        Stated("wins by 1e-4 is lost again", ARGUED),
    ),
    "docs/benchmarks.md": (
        Holds("Ours is the fastest at every size.", lambda: values.fastest("cpu")),
        Holds("Ours is the fastest at every size here, too", lambda: values.fastest("cuda")),
        Tied(
            "The time limit was {} seconds per case, and",
            lambda: values.seconds_of_a_case("cpu"),
        ),
        Tied("The time limit was {} seconds per case;", lambda: values.seconds_of_a_case("cuda")),
        Tied("robustness had {} trials at each of {} sizes", values.trials),
        Tied(
            "in all {} trials. The paper's sampler takes every (n // K)-th score, and held it in "
            "{} to {} of the trials",
            values.held_bands,
        ),
        Tied("finite differences by {} at most", lambda: [values.gradcheck()]),
    ),
    "docs/choosing.md": (
        Stated("scores ten times as large want one ten times as high", EXAMPLE),
        Stated("| t against the spread of the scores |", EXAMPLE),
        Stated("is a tenth of the standard deviation", EXAMPLE),
    ),
    "docs/coder.md": (
        Stated("| bytes | meaning |", CODE),
        Stated("72 bytes a pixel, three times the file and 64 MiB", LIMIT),
        Stated("4 s a megapixel, 2 s a megabyte and 2 s", LIMIT),
        Stated("before training and twice in it", CODE),
        Stated("Haar is there twice", CODE),
        Holds("plain is ahead on four and behind on two", lambda: values.ahead("plain", HAAR) == 4),
        Holds(
            "ahead of JPEG, JPEG 2000, WebP and JPEG XL in PSNR on all six",
            lambda: {values.ahead("best", other) for other in CODECS} == {6},
        ),
        Holds("behind AVIF tuned for PSNR on five", lambda: values.ahead("best", "AVIF") == 1),
        Holds(
            "AVIF is ahead on six of six, WebP on two",
            lambda: [values.ahead(one, "best", "ms_ssim") for one in ("AVIF", "WebP")] == [6, 2],
        ),
        Tied(
            "best has a median of {}, JPEG 2000 {} and AVIF (tuned for PSNR) {}.", values.similarity
        ),
        Tied("its files are up to {} smaller", lambda: [values.smaller_files()]),
        Tied("Seconds on two CPU cores: best {} to {}, plain {} to {}.", values.encoding),
        Tied(
            "The file alone gives {} dB; it is {} larger than training counted ({} bits",
            values.counted,
        ),
        Tied(
            "version takes {} s on the H200, and the operator {} of its step", values.best_on_a_gpu
        ),
        Tied("best is {} to {} dB above JPEG 2000, and {} to {} dB below AVIF", values.macaw),
        Tied("All {} rows", lambda: [f"{len(values.drawn())}"]),
        Tied("Of {} files of best and plain", lambda: [f"{len(values.drawn_by_us())}"]),
        Tied(
            "The longest encoding took {} s",
            lambda: [f"{max(row['seconds'] for row in values.drawn_by_us()):.0f}"],
        ),
        Stated("it takes up to 40 bytes", CODE),
        Tied("took up to {} times the shortest", lambda: [values.thread_runs()]),
        Stated("| option | bell_pepper", SEEN_ONCE),
        Stated("| the mask's gradient |", SEEN_ONCE),
        Stated("| | picture | dB |", SEEN_ONCE),
        Stated("with 16 a fifth of a grey file stayed empty", SEEN_ONCE),
    ),
    "docs/distributed.md": (
        Tied("it is {} a row on a CPU, and", lambda: [values.bytes_of_a_row()[0]]),
        Tied(
            "and {} times as much on a GPU",
            lambda: [values.bytes_on_a_gpu()],
        ),
        Tied("of each row sends {} of their bytes", lambda: [values.bytes_of_a_row()[1]]),
        Tied("one with fewer than {} more than all", lambda: [values.bytes_of_a_short_row()]),
        Stated("A hard mask sends twice the bytes", CODE),
        Stated("NVLink of 900 GB/s per GPU", OTHERS),
        Stated("port of 400 Gb/s per GPU", OTHERS),
        Stated("6.6 us to begin, 0.6 us for a step over NVLink, at least 1 us where", OTHERS),
        Stated("and 2.7 us for a step over the network", OTHERS),
        Tied(
            "take {} times as long as one process with all of them, and four with 256 rows of "
            "4,096 scores each {} times",
            values.processes,
        ),
        Stated("The target for the long row is 1.5 times", LIMIT),
        Stated("The target for the longest row is 1.4 times", LIMIT),
    ),
    "docs/how-it-works.md": (Stated("read twice", CODE),),
    "docs/layers/autoencoders.md": (
        Tied(
            "Annealed, it has {} less at k = 8; at k = 2 annealing makes it worse. Without an "
            "auxiliary loss more latents end dead: at k = 2 that is {} of the latents of "
            "`nn.BatchTopK`, and {} of those of the usual BatchTopK. All thresholds keep the "
            "budget on held-out data to {} on average",
            values.latents,
        ),
    ),
    "docs/layers/gates.md": (
        Tied(
            "| of the soft mask at t = 0.5 | {} | | of the soft mask at t = 0.1 | {} |",
            values.gates,
        ),
        Stated("| threshold, 16,384 normal scores, k = 100 |", ARGUED),
        Stated("counts a batch twice", CODE),
    ),
    "docs/layers/index.md": (Stated("at most a third of the usual way", LIMIT),),
    "docs/layers/losses.md": (
        Holds(
            "cannot be told apart by five seeds", lambda: values.verdicts("top-k-loss") == [0, 4]
        ),
    ),
    "docs/layers/pruning.md": (
        Holds("it is one comparison of twelve", lambda: values.verdicts("pruning") == [1, 12]),
        Stated("at 5 and at 2 percent of the weights", EXAMPLE),
        Stated("at 2 percent.", EXAMPLE),
    ),
    "docs/layers/routers.md": (
        Holds(
            "that is one comparison of six",
            lambda: values.verdicts("routed-language-model") == [1, 6],
        ),
        Tied("keep the budget to {} on average, but miss it by up to {} in a", values.routers),
    ),
    "docs/layers/tokens.md": (
        Holds(
            "does not help beyond the spread of the seeds",
            lambda: values.verdicts("token-selection") == [0, 6],
        ),
        Tied(
            "misses the budget by {} in the mean of the runs, as straight-through does, and by {} "
            "at worst; the sigmoid gate misses it by {}. `update_thresholds`, over 600 batches "
            "after the training, brings every run to {}.",
            values.tokens,
        ),
    ),
    "docs/learned-budgets.md": (Stated("a tenth of a unit of loss", EXAMPLE),),
    "docs/notes/certificates.md": (
        Stated("by up to 1e-6 of t at 16 temperatures", ARGUED),
        Stated("off by 3e-7 at most", ARGUED),
    ),
    "docs/notes/compiled-calls.md": (
        Stated("The limit is 1.3 times the slower", LIMIT),
        Holds(
            "On a CPU it holds for a million scores with the same t in every call, and on a GPU "
            "for none",
            lambda: (
                "soft_topk, compiled" in values.compiled_in_time("cpu")
                and "soft_topk, compiled" not in values.compiled_in_time("cuda")
            ),
        ),
    ),
    "docs/notes/cpu-kernel.md": (
        Stated("are read twice", CODE),
        Stated("takes up work in 5 us", SEEN_ONCE),
        Stated("work for 100 us: from 49,152 scores forward, at 2 ns each", SEEN_ONCE),
        Stated("backward, at 1 ns", SEEN_ONCE),
        Stated("8 ms and more", SEEN_ONCE),
        Stated("has taken four times as long", CODE),
        Stated("For 32 times as long", CODE),
        Stated("at most 8 MiB for each thread", CODE),
        Stated("outputs of 8 MiB and more", CODE),
    ),
    "docs/notes/gpu-kernels.md": (
        Stated("is read twice", CODE),
        Stated("reads it twice", CODE),
        Stated("are read twice", CODE),
        Stated("up to 48 MiB in all", CODE),
        Stated("could be off by 1e-6 (half an ulp", ARGUED),
        Stated("may be off by 1e-6 of k", ARGUED),
        Stated("at a tenth of the scores' standard deviation", CODE),
        Stated("| rows | who takes one |", CODE),
        Stated("| part of a call | launches |", CODE),
        Stated("twice where ties are cut", CODE),
        Tied("125 million scores takes {} times what a call", lambda: [values.one_rank()]),
        Stated("| kernel | launches | in all |", SEEN_ONCE),
        Stated("(12 bytes per float32 score) and two for long rows (20 bytes)", CODE),
        Stated("| | forward | backward |", CODE),
        Stated("280 bytes for each lane", CODE),
        Stated("9 to 36 kB,", CODE),
        Stated("at most 95 rows of a mask", CODE),
        Stated("take 36 kB a", CODE),
        Stated("7% of the scores of rows of", CODE),
        Stated("131,072, and 27% of rows", CODE),
        Stated("3.6 kB a row for each rank", CODE),
        Stated("One row of float32 has 7 measurements, 8 rows have 10", CODE),
        Stated("and 64 or more have 16", CODE),
        Stated("12 bytes a score", CODE),
        Stated("read twice again", CODE),
    ),
    "docs/notes/ragged.md": (
        Stated("are read twice by one program", CODE),
        Stated("more than 16,384 rows", CODE),
    ),
    "docs/notes/ranking.md": (
        Stated("met within 1e-7 n", ARGUED),
        Stated("(rows of fewer than 2,048 in four and eight", CODE),
    ),
    "docs/ragged.md": (
        Stated("at most 1.3 times the time of rows of the mean length", LIMIT),
        Stated("at most twice the scores", CODE),
    ),
    "docs/ranking.md": (
        Stated("a tenth of the spread", EXAMPLE),
        *(
            Tied(f"| {rows} | {{}} | {{}} |", partial(values.torchsort, case))
            for rows, case in TORCHSORT
        ),
        Stated("The limit is twice the time of", LIMIT),
        Holds(
            "A CPU keeps it.",
            lambda: values.lines_hold("cpu/ranking.json", "2 x torch.sort"),
        ),
        *(
            Tied(
                f"| the {by} | {scores} | {{}} | {{}} | {verdict} |",
                partial(values.sorts_over_torch, kind, scores),
            )
            for by, kind, scores, verdict in SORTS
        ),
        *(
            Holds(
                f"| the {by} | {scores} |",
                partial(_sorts_are, kind, scores, verdict),
            )
            for by, kind, scores, verdict in SORTS
        ),
    ),
}
