"""Tables of the image coder and of the attack, for docs/tools/marked_parts.py."""

from __future__ import annotations

from statistics import median
from typing import Any

from result_tables import load

#: Methods of the attack's comparison, and what docs/attack.md calls them.
METHODS = {
    "ours": "**ours**",
    "no-operator": "ours without the operator (`no-operator`)",
    "no-race": "ours without the choice of the class (`no-race`)",
    "paper-recipe": "paper's recipe",
    "sigma-zero": "sigma-zero",
    "pgd-l0": "PGD-L0",
    "sparse-pgd": "Sparse-PGD",
    "dense": "dense control",
    "sparse-fool": "SparseFool (sorted)",
}
NATIVE, RESIZED = "native", "short side 256"
SETTINGS = [(setting, calls) for setting in (NATIVE, RESIZED) for calls in (100, 300, 1000)]


def attack_rows(setting: str, calls: int) -> dict[str, dict[str, Any]]:
    """What every method came to, at the best of its settings, by its name."""
    for table in load("attack/results.json")["tables"]:
        if (table["setting"], table["calls"]) == (setting, calls):
            return {row["method"]: row for row in table["tab:attack-main"]}
    raise KeyError((setting, calls))


def attack_values(setting: str, calls: int, method: str, value: str = "B") -> dict[str, float]:
    """A value of every picture that a method fooled, by the picture's name without its suffix."""
    return {
        row["key"]["picture"].partition(".")[0]: row["values"][value]
        for row in load("attack/results.json")["rows"]
        if (row["key"]["setting"], row["key"]["calls"]) == (setting, calls)
        if row["key"]["method"] == method and row["status"] == "ok" and row["values"]["success"]
    }


def _by_setting(head: str, lines: list[list[str]]) -> str:
    heads = f"| {head} | native, 100 | 300 | 1000 calls | short side 256, 100 | 300 | 1000 calls |"
    return "\n".join([heads, "|---|" + "---:|" * 6, *("| " + " | ".join(x) + " |" for x in lines)])


def attack_totals() -> str:
    """The median of what methods change in all."""
    tables = [attack_rows(setting, calls) for setting, calls in SETTINGS]
    lines = []
    for method, name in METHODS.items():
        cells = []
        for table in tables:
            row = table[method]
            fooled = round(row["fooled_percent"] / 100 * row["pictures"])
            cell = _total(row["median_B"]) if fooled else "none"
            if 0 < fooled < row["pictures"]:
                cell += f" ({fooled} of {row['pictures']})"
            cells.append(f"**{cell}**" if method == "ours" else cell)
        lines.append([name, *cells])
    return _by_setting("median B", lines) + "\n"


def _total(value: float) -> str:
    return f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}"


def attack_pixels() -> str:
    """The median of how many pixels change, with the operator and without."""
    tables = [attack_rows(setting, calls) for setting, calls in SETTINGS]
    names = {"ours": "with the operator", "no-operator": "without"}
    lines = [
        [name, *(f"{table[method]['median_L0']:,.10g}" for table in tables)]
        for method, name in names.items()
    ]
    return _by_setting("median L0", lines) + "\n"


def lower(setting: str, calls: int, method: str, than: str) -> tuple[int, int]:
    """On how many pictures a method has the lower B of two, and of how many."""
    ours, others = (attack_values(setting, calls, name) for name in (method, than))
    return sum(ours[name] < others[name] for name in ours), len(ours)


def attack_choice() -> str:
    """On how many pictures the choice of the class lowers B."""
    lines = ["| B is lower with the choice | 300 calls | 1000 calls |", "|---|---|---|"]
    for setting in (NATIVE, RESIZED):
        found = [lower(setting, calls, "ours", "no-race") for calls in (300, 1000)]
        cells = [f"on {won} of {pictures} pictures" for won, pictures in found]
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def attack_times() -> str:
    """An attack, a step of it, and the operator's part."""
    lines = ["| | the attack | a step | the operator | its share |", "|---|---:|---:|---:|---:|"]
    for file, name in (
        ("cuda", "one H200"),
        ("cuda-first", "one H200, kernels still to be compiled"),
        ("cpu", "two CPU cores"),
    ):
        record = load(f"attack/profile/{file}.json")
        profile, seconds = record["profile"], record["measures"]["seconds"]
        took = f"{seconds:.1f}" if seconds < 99.95 else f"{seconds:.0f}"
        step = 1e3 * profile["step_seconds"]
        cells = [f"{took} s", f"{step:.1f} ms" if step < 99.95 else f"{step:.0f} ms"]
        cells += [f"{1e3 * profile['operator_seconds']:.1f} ms", f"{profile['share']:.1%}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def coder_quality() -> str:
    """PSNR of every photograph and codec, and by how much ours are ahead."""
    from fast_lapsum.apps.coder import report_text

    text = report_text.markdown(load("coder/results.json"))
    return text.partition("### PSNR in dB\n\n")[2].partition("\n### ")[0]


def coder_size() -> str:
    """The paper's size, on two processors."""
    cpu, cuda = (load(f"coder/k10000-{device}.json") for device in ("cpu", "cuda"))

    def share(record: dict[str, Any]) -> str:
        profile = record["profile"]
        times = " of ".join(f"{profile[name]:#.3g}" for name in ("operator_ms", "step_ms"))
        return f"{profile['share']:.1%} ({times.rstrip('.')} ms)"

    both = (cpu, cuda)
    lines = {
        "atoms": ("at most 10,000", *(f"{one['atoms']:,}" for one in both)),
        "bits": ("at most 160,000", *(f"{one['file_bits']:,}" for one in both)),
        "bits per pixel": ("", *(f"{one['bpp']:.4f}" for one in both)),
        "bytes, headers included": ("at most 20,600", *(f"{one['bytes']:,}" for one in both)),
        "seconds, compiling and decoding included": (
            "under 600 and 40",
            *(f"{one['seconds']:.1f}" for one in both),
        ),
        "operator's share of a step": ("under 25%", *map(share, both)),
    }
    table = ["| | asked for | two CPU cores | H200 |", "|---|---:|---:|---:|"]
    table += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in lines.items()]
    return "\n".join(table) + "\n"


def coder_threads() -> str:
    """Seconds to encode, with threads that spin and with threads that sleep."""
    rows = load("coder/threads.json")["rows"]
    found = {(row["threads"], row["busy_processes"]): row["median"] for row in rows}
    lines = ["| | no such process | one more process |", "|---|---:|---:|"]
    for name in dict.fromkeys(row["threads"] for row in rows):
        lines.append(f"| {name} | {found[name, 0]:.1f} | {found[name, 1]:.1f} |")
    return "\n".join(lines) + "\n"


def coder_hostile() -> str:
    """Files made by hand, and how much of the limits the worst of each kind took."""
    lines = ["| files | how many | over a limit | memory | time | file |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    for file, kind, name in (
        ("hostile", "mutated", "damaged"),
        ("hostile-crafted", "crafted", "made by hand, sizes log-uniform up to the limit"),
        ("hostile-at-the-limit", "crafted at the limit", "made by hand, of 2^26 pixels"),
    ):
        found = load(f"coder/{file}.json")["kinds"][kind]
        shares = [f"{found[f'largest_{what}_share']:.0%}" for what in ("memory", "time")]
        cells = [name, f"{found['files']:,}", str(found["over"]), *shares]
        cells.append(f"[{file}.json](../results/coder/{file}.json)")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def coder_lead(file: str, method: str, than: str, value: str = "psnr") -> list[float]:
    """By how much one method is ahead of another on each picture and rate, the least first."""
    rows: dict[tuple[str, float], dict[str, float]] = {}
    for row in load(f"coder/{file}.json")["rows"]:
        rows.setdefault((row["picture"], row["target_bpp"]), {})[row["method"]] = row[value]
    return sorted(row[method] - row[than] for row in rows.values())


def coder_median(method: str, value: str) -> float:
    """The median of a method over the photographs."""
    rows = load("coder/results.json")["rows"]
    return median(row[value] for row in rows if row["method"] == method)


PARTS = {
    "attack-totals": attack_totals,
    "attack-pixels": attack_pixels,
    "attack-choice": attack_choice,
    "attack-times": attack_times,
    "coder-quality": coder_quality,
    "coder-size": coder_size,
    "coder-threads": coder_threads,
    "coder-hostile": coder_hostile,
}
