"""The GPU benchmark's clock, on a CPU: inputs beyond the cache, graphs, and calls that wait."""

from collections.abc import Callable

import pytest
import torch

from fast_lapsum.bench import gpu_timing

CPU = torch.device("cpu")


def test_inputs_in_rotation_exceed_the_cache_four_times() -> None:
    for size in (4000, 4_000_000, 40_000_000, 400_000_000):
        sets = gpu_timing.sets_beyond(50 << 20, size)
        assert sets == gpu_timing.MOST_SETS or sets * size > 4 * (50 << 20)


def test_device_timing_spends_no_more_than_it_may() -> None:
    calls: list[Callable[[], object]] = [lambda: None] * 5
    quick = gpu_timing.device_timing(calls, repeats=7, device=CPU)
    assert (quick.samples, quick.calls, quick.source) == (7, 5, "eager")
    short = gpu_timing.device_timing(calls, repeats=7, device=CPU, most_seconds=0)
    assert short.samples == 3


class FakeCuda:
    """As much of torch.cuda as a capture needs, keeping a diary."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: str = "") -> None:
        self.diary: list[str] = []
        self.mode = 0
        self.refuses = refuses
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                fake.diary.append("event")

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: object) -> float:
                return 2.0  # milliseconds

        class Graph:
            def replay(self) -> None:
                fake.diary.append("replay")

        class Capture:
            def __init__(self, graph: Graph) -> None:
                pass

            def __enter__(self) -> None:
                fake.diary.append("capture")

            def __exit__(self, *args: object) -> None:
                if fake.refuses == "capture":
                    raise RuntimeError("operation not permitted when stream is capturing")
                fake.diary.append("captured")

        for name, value in {
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": Capture,
            "current_stream": lambda: "stream",
            "set_stream": lambda stream: self.diary.append(f"back to {stream}"),
            "synchronize": lambda: None,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def call(self) -> None:
        if self.refuses == "sync" and self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.diary.append("call")


@pytest.mark.parametrize("refuses", ["", "sync", "capture"])
def test_calls_are_timed_as_one_graph_or_eagerly_where_they_cannot_be(
    refuses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch, refuses)
    timing = gpu_timing.device_timing([cuda.call] * 4, repeats=5, device=torch.device("cuda"))
    assert (timing.samples, timing.calls) == (5, 4)
    assert timing.p50 == pytest.approx(2e-3 / 4)
    assert cuda.mode == 0
    assert timing.source == ("eager" if refuses else "graph")
    assert ("replay" in cuda.diary) == (not refuses)
    if refuses == "capture":
        assert "back to stream" in cuda.diary
    if not refuses:  # warm calls, the look for waits, the capture; then the device is kept busy
        capture = cuda.diary.index("capture")
        assert cuda.diary[:capture] == ["call"] * 3
        assert cuda.diary[capture + 1 : capture + 6] == ["call"] * 4 + ["captured"]
        assert cuda.diary[-4:] == ["replay", "event", "replay", "event"]


def test_a_call_that_waits_is_found_and_running_out_of_memory_is_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted() -> None:
        raise torch.OutOfMemoryError("no room")

    assert "synchronizing" in str(gpu_timing.sync_error(FakeCuda(monkeypatch, "sync").call))
    assert gpu_timing.sync_error(FakeCuda(monkeypatch).call) is None
    with pytest.raises(torch.OutOfMemoryError):
        gpu_timing.sync_error(exhausted)
