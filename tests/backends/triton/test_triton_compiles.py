"""Every GPU kernel compiles, down to machine code, for the GPUs there are; no GPU is needed.

The launches are those of launch.py, recorded, with all their parameters.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels are interpreted in this process", allow_module_level=True)

from triton.runtime import JITFunction

from compiling import Recorded, build, compiled, options_of, source_of
from fast_lapsum.backends.triton import launch, steps
from fast_lapsum.backends.triton.config import LongPlan, SharedPlan

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
KERNELS = {name: value for name, value in vars(steps).items() if isinstance(value, JITFunction)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """What another run compiled does not count; in this one a kernel is compiled once."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Recorded]]:
    """The launches of a forward and a backward, which launch nothing."""
    launches: list[Recorded] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel
            self.arg_names = kernel.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(0 < count < 2**31 for count in grid)
            return lambda *args, **kwargs: launches.append((self.kernel, args, kwargs))

    for name, kernel in KERNELS.items():
        monkeypatch.setattr(steps, name, Recorder(kernel))
    monkeypatch.setattr(launch, "room_of", lambda device: 132)
    monkeypatch.setattr(launch, "on_device", lambda scores: contextlib.nullcontext())

    def run(
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        everything: bool = False,
        masked: bool = False,
        output: str = "mask",
        overlap: bool = False,
        plan: Any = None,
    ) -> list[Recorded]:
        monkeypatch.setattr(launch, "can_overlap", lambda device: overlap)

        def new(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        scores = new(dtype, shape[::-1]).mT if everything else new(dtype, shape)
        mask = new(torch.bool, shape) if everything or masked else None
        rows = new(torch.float64, shape[:-1]) if everything else None
        largest = not everything
        launches.clear()
        given = (scores, rows, 1.5, rows, 0.5, mask, rows, largest, output, dtype)
        _, pairs = launch.forward(*given, plan=plan)
        launch.backward(scores, scores, rows, 0.5, mask, pairs, largest, output, everything)
        return list(launches)

    return run


def _rebuild(first: Any, launched: Recorded, capability: int, folder: Path) -> str:
    """The same kernel for another GPU, from the layout that it was given for the first.

    Finding the layout is most of what compiling takes, and it is the same for all GPUs.
    """
    layout, count = re.subn(r'"cuda:\d+"', f'"cuda:{capability}"', first.asm["ttgir"])
    assert count == 1
    path = folder / f"{launched[0].__name__}-{capability}.ttgir"
    path.write_text(layout)
    return str(build(str(path), launched, capability).asm["ptx"])


def _sums_with_a_fused_product(ptx: str) -> int:
    """Additions of another thread's number into which a thread's own product went unrounded."""
    shuffled: set[str] = set()
    count = 0
    for line in ptx.splitlines():
        operation, _, operands = line.strip().rstrip(";").replace("{", "").partition(" ")
        names = re.findall(r"%\w+", operands)
        if not names:
            continue
        if operation.startswith("shfl") or (
            operation.startswith("mov") and shuffled.intersection(names[1:])
        ):
            shuffled.add(names[0])
        count += operation.startswith("fma") and names[-1] in shuffled
    return count


def _instructions(ptx: str) -> list[str]:
    """Without the lines of the source and the GPU that they are for."""
    told = (".target", ".loc", ".file", ".version", "//", "$L__tmp", ".b8", ".b32", ".b64")
    return [line for line in ptx.splitlines() if not line.strip().startswith(told)]


def test_calls_have_a_field_that_is_nothing(record: Callable[..., list[Recorded]]) -> None:
    """Triton 3.6 loses strides of 1 in loops where none is: see FullCall."""
    for everything in (True, False):
        for _, given, _ in record((64, 100), torch.float32, everything=everything):
            assert any(field is None for field in given[0])


def test_rows_of_eight_are_in_one_thread_each(record: Callable[..., list[Recorded]]) -> None:
    """What the layout of a tile is for: no number goes from thread to thread."""
    for launched in record((4096, 8), torch.float32):
        assert "shfl" not in compiled(launched)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masks_are_read_as_many_at_once_as_scores(
    record: Callable[..., list[Recorded]], dtype: torch.dtype
) -> None:
    """Four of them beside four float32, eight beside eight numbers of two bytes."""
    for launched in record((4096, 512), dtype, masked=True):
        code = compiled(launched)
        assert "ld.global.v4.b32" in code
        assert code.count("ld.global.b8") <= 2  # of single scores, which a first guess is made of


@pytest.mark.parametrize("n", [8, 33])
def test_threads_of_a_warp_agree_about_sums(record: Callable[..., list[Recorded]], n: int) -> None:
    """With rows that begin anywhere, every thread may have one score of a row."""
    for launched in record((3, n), torch.float32, everything=True):
        assert _sums_with_a_fused_product(compiled(launched)) == 0


#: Rows of every kind: in tiles, held by teams, one program each, in chunks.
SHAPES = ((3, 300), (1, 100_000), (100, 100_000), (2, 20_000_000))


#: The same kernels with less to unroll: a program has few threads, and reads few scores at a time.
SMALL_LONG = LongPlan(warps=1, width=1, sample=32, read=1, listed=1, written=1)
SMALL_SHARED = SharedPlan(
    *(128, 156_256, 1, 128, 1, 4),
    warps=1,
    gather_warps=1,
    read=1,
    read_again=1,
    listed=1,
    written=1,
    piece=32,
)
#: As it is launched, but for what a thread reads and writes at a time.
SHORT_LONG = LongPlan(width=4, read=1, listed=1, written=1)


def _name(value: Any) -> str:
    """Of a parameter of a test."""
    return "small" if isinstance(value, LongPlan | SharedPlan) else str(value)


def test_every_kernel_is_compiled_here(record: Callable[..., list[Recorded]]) -> None:
    """The shapes below launch all that there is to launch."""
    launched = {what[0].__name__ for shape in SHAPES for what in record(shape, torch.float32)}
    assert launched == set(KERNELS)


def test_a_layout_is_the_same_for_every_gpu(
    record: Callable[..., list[Recorded]], tmp_path: Path
) -> None:
    """What the next test relies on: a whole build gives the same instructions."""
    for launched in record((4096, 8), torch.float32):
        first = build(source_of(launched), launched, 90)
        for capability in (80, 100):
            whole = compiled(launched, capability)
            again = _rebuild(first, launched, capability, tmp_path)
            assert _instructions(again) == _instructions(whole)


@pytest.mark.parametrize(
    ("shape", "plan", "older_dtype", "older_plan"),
    [
        (SHAPES[0], None, torch.float32, None),
        (SHAPES[1], None, torch.float64, None),
        (SHAPES[2], SHORT_LONG, torch.float32, SHORT_LONG),
        (SHAPES[3], None, torch.float64, SMALL_SHARED),
        *(
            pytest.param(shape, None, torch.float32, None, marks=pytest.mark.slow)
            for shape in SHAPES[1:]
        ),
    ],
    ids=_name,
)
def test_every_gpu(
    record: Callable[..., list[Recorded]],
    tmp_path: Path,
    shape: tuple[int, int],
    plan: Any,
    older_dtype: torch.dtype,
    older_plan: Any,
) -> None:
    """As it is launched there: from Hopper on launches overlap.

    What older ones launch is another kernel then. Long rows have float64 there: one build for both.
    """
    built: dict[str, Any] = {}
    newer = (True, torch.float32, plan, (90, 100))
    for overlap, dtype, given, capabilities in (newer, (False, older_dtype, older_plan, (80,))):
        for launched in record(shape, dtype, overlap=overlap, plan=given):
            source = source_of(launched)
            told = (source.name, source.signature, source.constants, source.attrs)
            name = str((*told, options_of(launched)))
            for capability in capabilities:
                if name in built:
                    _rebuild(built[name], launched, capability, tmp_path)
                else:
                    built[name] = build(source, launched, capability)


@pytest.mark.parametrize("output", ["hard", "log", "threshold"])
def test_every_output_compiles(record: Callable[..., list[Recorded]], output: str) -> None:
    for launched in record((3, 300), torch.float32, output=output):
        compiled(launched)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_compiles(record: Callable[..., list[Recorded]], dtype: torch.dtype) -> None:
    for launched in record((3, 64), dtype):
        compiled(launched)


def test_blocks_compile(record: Callable[..., list[Recorded]]) -> None:
    """One row per program: plain, and with everything and hard masks."""
    launches = record((3, 2048), torch.float32)
    launches += record((3, 500), torch.bfloat16, everything=True, output="hard")
    for launched in launches:
        compiled(launched)


@pytest.mark.parametrize(
    ("dtype", "everything", "shape", "plan"),
    [
        (torch.bfloat16, True, SHAPES[1], None),
        (torch.bfloat16, True, SHAPES[2], SMALL_LONG),
        (torch.float64, False, SHAPES[2], SMALL_LONG),
        *(
            pytest.param(torch.bfloat16, True, shape, None, marks=pytest.mark.slow)
            for shape in SHAPES[2:]
        ),
        *(
            pytest.param(torch.float64, False, shape, None, marks=pytest.mark.slow)
            for shape in SHAPES[1:]
        ),
    ],
    ids=_name,
)
def test_long_rows_of_other_kinds_compile(
    record: Callable[..., list[Recorded]],
    dtype: torch.dtype,
    everything: bool,
    shape: tuple[int, int],
    plan: Any,
) -> None:
    """With everything: hard masks, masks, strides, tensors, the smallest; and float64, which
    :func:`test_every_gpu` has for older GPUs.
    """
    output = "hard" if everything else "mask"
    options = {"everything": everything, "output": output, "overlap": True, "plan": plan}
    for launched in record(shape, dtype, **options):
        compiled(launched)


@pytest.mark.parametrize(
    "plan", [SMALL_SHARED, pytest.param(None, marks=pytest.mark.slow)], ids=["small", "whole"]
)
def test_huge_rows_compile(record: Callable[..., list[Recorded]], plan: Any) -> None:
    """Lengths and strides beyond 32 bits, in chunks, with everything as above."""
    options = {"everything": True, "output": "hard", "overlap": True, "plan": plan}
    for launched in record((2, 2**31 + 1024), torch.bfloat16, **options):
        assert "i64" in str(source_of(launched).signature["call"])
        compiled(launched)


#: In a process for each order, whose parent has imported what all of them need.
ASKED = """
import os, sys, torch
from importlib import import_module
from triton.runtime import JITFunction

def ask(first, step):
    import_module(f"fast_lapsum.backends.triton.{first}")
    loaded = [m for name, m in sys.modules.items() if "backends.triton" in name]
    found = [k for m in loaded for k in vars(m).values() if isinstance(k, JITFunction)]
    kernels = {k.__name__: k for k in found if k.do_not_specialize}  # others are called by them
    print(sorted(kernels[name].cache_key for name in sorted(kernels)[::step]), flush=True)

for first in FIRST:
    for step in (1, -1):
        child = os.fork()
        if child == 0:
            ask(first, step)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


def test_a_kernel_is_found_in_the_cache_whatever_was_called_first() -> None:
    """Keys of Triton's cache on disk, asked for in this order or the other."""
    first = ["launch", "selection_launch", "ragged_launch", "many_launch", "ranking_launch"]
    first += ["activation_entry", "shard_entry"]
    program = ASKED.replace("FIRST", repr(first))
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    keys = ran.stdout.splitlines()
    assert len(keys) == 2 * len(first)
    assert keys[::2] == keys[1::2]
    assert len(keys[0]) > 500
