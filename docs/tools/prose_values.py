"""What results files have for the sentences of pages, as text, for docs/tools/prose_numbers.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

from application_tables import (
    NATIVE,
    RESIZED,
    attack_rows,
    attack_values,
    coder_lead,
    coder_median,
    lower,
)
from rank_tables import COUNTS
from result_tables import RESULTS, load


def _ratio(
    file: str, case: str, one: str, other: str, kind: str = "timings", at: str = "p50"
) -> float:
    """What one call of a case takes over another."""
    (found,) = (each for each in load(file)["cases"] if each["case"] == case)
    times: float = found[kind][one][at] / found[kind][other][at]
    return times


def _per_row(rows: int, name: str) -> float:
    """What the simulation of ranks counted for many rows, per row."""
    cases = json.loads(COUNTS.read_text(encoding="utf-8"))["cases"]
    return max(float(case[name]) for case in cases if case["rows"] == rows) / rows


def bytes_of_a_row() -> tuple[str, str]:
    """What a rank sends of each of many rows on a CPU, and the share of 4,096 float32 scores."""
    sent = _per_row(64, "bytes")
    return f"{sent / 1e3:.1f} kB", f"{sent / (4 * 4096):.0%}"


def bytes_on_a_gpu() -> str:
    """How many times the bytes of a CPU a GPU sends of each of many rows."""
    return f"{_per_row(64, 'most_bytes') / _per_row(64, 'bytes'):.1f}"


def bytes_of_a_short_row() -> str:
    """With how many float32 scores a rank would send as much as it has."""
    return f"{round(_per_row(64, 'bytes') / 4, -2):.0f}"


def processes() -> Iterator[str]:
    """What processes that share a machine take beside one, in the 20th percentile."""
    for case in ("4 ranks, 5,000,000 scores each", "4 ranks, 256 rows of 4,096 scores each"):
        yield f"{_ratio('cpu/ranks.json', case, 'ranks', 'one process', at='p20'):.2g}"


def one_rank() -> str:
    """What one of the ranks takes beside a call on its scores alone."""
    names = ("one of the ranks, without the network", "one device")
    return f"{_ratio('cuda/ranks.json', 'one of 8 ranks, 125,000,000 scores', *names):.2g}"


def sorts_over_torch(kind: str, case: str) -> Iterator[str]:
    """What soft ranks and sorts take beside torch's sort."""
    for name in ("soft_rank", "soft_sort"):
        yield f"{_ratio('cuda/ranking.json', case, name, 'torch.sort', kind):.2g}"


def torchsort(case: str) -> Iterator[str]:
    """What torchsort's functions take beside ours."""
    for name in ("rank", "sort"):
        ours = f"soft_{name}"
        yield f"{_ratio('cpu/ranking.json', case, f'torchsort {name}', ours):.2g}"


def _experiment(device: str, name: str) -> dict[str, Any]:
    return load(f"{device}/{name}.json")


def _robustness(sampler: str) -> list[dict[str, Any]]:
    rows = _experiment("cuda", "robustness")["rows"]
    return [row for row in rows if row["key"]["sampler"] == sampler and row["status"] == "ok"]


def held_bands() -> Iterator[str]:
    """Trials in which our band held the threshold, and shares of those where the paper's did."""
    ours = [row["values"] for row in _robustness("ours")]
    yield f"{sum(round(one['trials'] * one['coverage']) for one in ours):,}"
    periods = [
        row for row in _robustness("paper") if row["key"]["distribution"] == "periodic-stride"
    ]
    shares = [100 * row["values"]["coverage"] for row in periods]
    yield f"{min(shares):.0f}"
    yield f"{max(shares):.0f}%"


def seconds_of_a_case(device: str) -> Iterator[str]:
    """The time that a case was given, in all experiments but that of robustness."""
    files = sorted((RESULTS / device).glob("*.json"))
    found = [load(f"{device}/{path.name}") for path in files]
    given = {
        one["settings"]["seconds"]
        for one in found
        if "settings" in one and one.get("experiment") not in (None, "robustness")
    }
    yield from dict.fromkeys(f"{one:g}" for one in (min(given), max(given)))


def trials() -> tuple[str, str]:
    """Trials of the samplers at each size, and how many sizes there are."""
    rows = _robustness("ours")
    (number,) = {row["values"]["trials"] for row in rows}
    words = {2: "two", 3: "three", 4: "four"}
    return f"{number}", words[len({row["key"]["n"] for row in rows})]


def gradcheck() -> str:
    """How far gradients are from finite differences."""
    rows = _experiment("cuda", "gradcheck")["rows"]
    return f"{max(row['values']['relative_error'] for row in rows):.2g}"


def _means(study: str, condition: str, method: str) -> dict[str, float]:
    (line,) = (
        one
        for one in load(f"examples/{study}.json")["summary"]
        if (one["condition"], one["method"]) == (condition, method)
    )
    found: dict[str, float] = line["means"]
    return found


def latents() -> Iterator[str]:
    """Of autoencoders: the error that annealing spares, dead latents, and budgets."""
    study, ours, usual = "sparse-autoencoder", "nn.BatchTopK", "usual BatchTopK"
    annealed = _means(study, "k = 8", f"{ours}, annealed")["test"]
    yield f"{1 - annealed / _means(study, 'k = 8', usual)['test']:.0%}"
    for method in (ours, usual):
        yield f"{_means(study, 'k = 2', method)['dead']:.0%}"
    means = [one["means"] for one in load(f"examples/{study}.json")["summary"]]
    yield f"{max(abs(one['active'] - 1) for one in means):.0%}"


def _misses(study: str, value: str, *methods: str) -> list[float]:
    """By how much of the budget the compared runs of some methods miss it, each."""
    return [
        abs(run["values"][value] - 1)
        for run in load(f"examples/{study}.json")["runs"]
        if run["role"] == "compared" and run["method"] in methods
    ]


def routers() -> Iterator[str]:
    """By how much of the budget routers miss it, on average and at worst."""
    study, methods = "routed-language-model", ("router, batch", "router, expert")
    value = "active, as trained"
    means = [abs(_means(study, "2 of 8", method)[value] - 1) for method in methods]
    yield f"{max(means):.0%}"
    yield f"{max(_misses(study, value, *methods)):.0%}"


def tokens() -> Iterator[str]:
    """The same of token selection: as trained, the sigmoid gate, and updated."""
    study, ours = "token-selection", ("TokenSelect", "TokenSelect, annealed")
    trained = _misses(study, "active, as trained", *ours)
    yield f"{sum(trained) / len(trained):.0%}"
    yield f"{max(trained):.0%}"
    gate = _misses(study, "active", "sigmoid gate")
    yield f"{sum(gate) / len(gate):.0%}"
    yield f"{max(_misses(study, 'active', *ours)):.0%}"


def gates() -> Iterator[str]:
    """How many normal scores are over the threshold of a soft mask: computed, not measured."""
    import torch

    from fast_lapsum import threshold

    scores = torch.randn(200, 16_384, generator=torch.Generator().manual_seed(0))
    for temperature in (0.5, 0.1):
        over = scores > threshold(scores, 100, temperature)[:, None]
        yield f"{float(over.sum(-1).float().mean()):.0f}"


def totals(picture: str, setting: str, calls: int, *methods: str) -> Iterator[str]:
    """B of one picture by some methods."""
    for method in methods:
        value = attack_values(setting, calls, method)[picture]
        yield f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def all_fooled() -> str:
    """How many pictures ours fools, if it does all of them at any number of calls."""
    counts = set()
    for calls in (100, 300, 1000):
        rows = [attack_rows(setting, calls)["ours"] for setting in (NATIVE, RESIZED)]
        fooled = sum(row["fooled_percent"] == 100 and row["pictures"] for row in rows)
        counts.add(fooled)
    (pictures,) = counts
    return f"{pictures}"


def dense(setting: str) -> Iterator[str]:
    """How many times the B of ours the dense control has."""
    tables = load("attack/results.json")["tables"]
    found = [one["verdict"]["dense_over_ours"] for one in tables if one["setting"] == setting]
    yield from (f"{min(found):.0f}", f"{max(found):.0f}")


def without_operator() -> Iterator[str]:
    """On how many pictures B is lower without the operator."""
    for calls in (300, 1000):
        yield "{} of {}".format(*lower(RESIZED, calls, "no-operator", "ours"))


def _medians(calls: int, left_out: tuple[str, ...]) -> Iterator[float]:
    """Of B on resized pictures, without the operator and with it."""
    for method in ("no-operator", "ours"):
        found = attack_values(RESIZED, calls, method)
        yield statistics.median(value for name, value in found.items() if name not in left_out)


def gap_without_operator() -> list[str]:
    """The median B without the operator, of that with it, at 300 and at 1000 calls."""
    pairs = [tuple(_medians(calls, ())) for calls in (300, 1000)]
    return [f"{without / with_it:.1f}" for without, with_it in pairs]


def others_without_operator() -> Iterator[str]:
    """Both medians, at 300 and at 1000 calls, without the two pictures that make the difference."""
    for calls in (300, 1000):
        yield from (f"{value:.0f}" for value in _medians(calls, ("daisy_2mp", "bell_pepper")))


def chance() -> Iterator[str]:
    """By how much two runs of the same attack differ: all pictures but the worst, and that one."""
    found = []
    for setting in (NATIVE, RESIZED):
        ours, same = (attack_values(setting, 100, name) for name in ("ours", "no-race"))
        found += [abs(same[name] / ours[name] - 1) for name in ours]
    *others, worst = sorted(found)
    yield from (f"{max(others):.0%}", f"{worst:.0%}")


def counted() -> Iterator[str]:
    """Quality and size of the paper's file, and what training counted."""
    record = load("coder/k10000-cpu.json")
    yield f"{record['psnr']:.2f}"
    yield f"{record['file_bits'] / record['counted_bits'] - 1:.2%}"
    yield f"{record['counted_bits']:,.0f}"


def best_on_a_gpu() -> tuple[str, str]:
    """Seconds of the best version, and the operator's share of a step."""
    record = load("coder/best-cuda.json")
    profile = record["profile"]
    return f"{record['seconds']:.1f}", f"{profile['operator_ms'] / profile['step_ms']:.1%}"


def macaw() -> Iterator[str]:
    """How far best is above JPEG 2000, and below AVIF."""
    over, under = (coder_lead("macaw", "best", other) for other in ("JPEG 2000", "AVIF"))
    for value in (over[0], over[-1], -under[-1], -under[0]):
        yield f"{value:.2f}"


def similarity() -> Iterator[str]:
    """Medians of MS-SSIM."""
    for method in ("best", "JPEG 2000", "AVIF"):
        yield f"{coder_median(method, 'ms_ssim'):.4f}"


def smaller_files() -> str:
    """By how much AVIF's files are smaller than they may be."""
    rows = [row for row in load("coder/results.json")["rows"] if row["method"] == "AVIF"]
    return f"{1 - min(row['bytes'] / row['budget_bytes'] for row in rows):.0%}"


def encoding() -> Iterator[str]:
    """The least and the most seconds of best, and of plain."""
    rows = load("coder/results.json")["rows"]
    for method in ("best", "plain"):
        seconds = [row["seconds"] for row in rows if row["method"] == method]
        yield from (f"{end(seconds):.0f}" for end in (min, max))


def drawn() -> list[dict[str, Any]]:
    """Rows of drawn pictures."""
    rows: list[dict[str, Any]] = load("coder/drawn.json")["rows"]
    return rows


def drawn_by_us() -> list[dict[str, Any]]:
    """Those of this package."""
    return [row for row in drawn() if row["method"] in ("best", "plain")]


def thread_runs() -> str:
    """How many times the shortest of equal runs the longest took."""
    rows = load("coder/threads.json")["rows"]
    return f"{max(max(row['seconds']) / min(row['seconds']) for row in rows):.1f}"


def fastest(device: str) -> bool:
    """Whether ours takes the least time of all methods with an exact budget, at every size."""
    from fast_lapsum.bench.peers import PEERS

    times: dict[int, dict[str, float]] = {}
    for row in load(f"{device}/operators.json")["rows"]:
        if row["status"] == "ok" and row["key"]["pass"] == "forward+backward":
            taken = row["values"]["seconds"]["p50"]
            times.setdefault(row["key"]["n"], {})[row["key"]["method"]] = taken
    return all(
        taken["fast-lapsum"] <= time
        for taken in times.values()
        for name, time in taken.items()
        if name in PEERS and PEERS[name].exact_budget
    )


def lines_hold(file: str, at_most: str, *cases: str) -> bool:
    """Whether all limits of a kind hold in some cases, or in all of them."""
    lines = [
        line
        for case in load(file)["cases"]
        for line in case["lines"]
        if at_most in line["at_most"] and (not cases or case["case"] in cases)
    ]
    return bool(lines) and all(line["met"] for line in lines)


def compiled_in_time(device: str) -> set[str]:
    """Compiled calls that keep the limit for a million scores, if none does for fewer."""
    kept = [
        (case["case"].startswith("1,000,000,"), line["call"])
        for case in load(f"{device}/compiled.json")["cases"]
        for line in case["lines"]
        if line["at_most"].startswith("1.3 x") and line["met"]
    ]
    return {call for _, call in kept} if all(is_long for is_long, _ in kept) else set()


def twice_the_sort(kind: str, case: str) -> bool:
    """Whether soft ranks and sorts take at most twice torch's sort."""
    return all(float(times) <= 2 for times in sorts_over_torch(kind, case))


def losses_of_the_attack() -> list[str]:
    """Pictures on which another method, its own variants aside, has a B as low as ours."""
    rows = load("attack/results.json")["rows"]
    others = {row["key"]["method"] for row in rows} - {"ours", "no-operator", "no-race"}
    return [
        picture
        for setting in (NATIVE, RESIZED)
        for calls in (100, 300, 1000)
        for method in sorted(others)
        for picture, spent in attack_values(setting, calls, method).items()
        if spent <= attack_values(setting, calls, "ours")[picture]
    ]


def ahead(method: str, other: str, value: str = "psnr") -> int:
    """On how many photographs a coder is ahead of another."""
    return sum(lead > 0 for lead in coder_lead("results", method, other, value))


def verdicts(study: str) -> list[int]:
    """How many of an example's comparisons ours wins beyond the spread, and how many there are."""
    lines = load(f"examples/{study}.json")["summary"]
    found = [one["verdict"] for line in lines for one in line.get("differences", {}).values()]
    return [found.count("ours"), len(found)]
