"""Rows that are spread over real processes: the parts together are what one process gets."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed

from cases import DTYPES
from fast_lapsum import soft_topk, soft_topk_list
from fast_lapsum.backends.shards import COLUMNS, HEADER, Sizes
from places import TESTS
from sharded_cases import all_cases
from sharded_checks import Ranks, check
from sharded_processes import list_of

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs gloo",
)
#: How many processes, and how many adversarial rows.
WORLDS = [(2, 2000), (3, 400)]
LARGE_WORLDS = [(3, 2000), (4, 2000), (8, 2000)]


def _name(world: tuple[int, int]) -> str:
    return "{} ranks, {} rows".format(*world)


@pytest.fixture(
    scope="module",
    params=[*WORLDS, *(pytest.param(one, marks=pytest.mark.slow) for one in LARGE_WORLDS)],
    ids=_name,
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each process found; one start of them for all tests."""
    folder = tmp_path_factory.mktemp("sharded")
    size, adversarial_rows = request.param
    files = [folder / f"rank-{rank}.pt" for rank in range(size)]
    started = [
        subprocess.Popen(
            [
                *(sys.executable, str(TESTS / "sharded_processes.py")),
                *(str(number) for number in (rank, size, adversarial_rows)),
                *(str(folder / "meeting"), str(file)),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, file in enumerate(files)
    ]
    try:
        said = [process.communicate(timeout=250 * size)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(said)
    return [torch.load(file) for file in files]


def test_parts_are_those_of_the_reference(ranks: Ranks) -> None:
    """Masks, logarithms, thresholds, hard masks and all gradients; bits agree between ranks."""
    wrong = []
    for case in all_cases(ranks[0]["adversarial rows"]):
        try:
            check(case, ranks)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} cases: " + "\n".join(wrong[:20])


def test_few_collectives(ranks: Ranks) -> None:
    """At most 4 forward for ordinary rows, one backward, the same on all ranks."""
    for case in all_cases(ranks[0]["adversarial rows"]):
        counted = [one["cases"][case.name]["collectives"][:1] for one in ranks]
        assert len(set(counted)) == 1, case.name
        _, _, backward, size = ranks[0]["cases"][case.name]["collectives"]
        assert (backward, size) == (1, 7 * 8 * len(case.k)), case.name
    for name in ("normal 3000", "student_t2 3000", "log_normal 3000", "sorted 3000", "normal 67"):
        assert ranks[0]["cases"][name]["collectives"][0] <= 4, name


def test_bytes_are_those_of_the_sizes(ranks: Ranks) -> None:
    """A sample, and measurements of one size each, however many scores a rank has."""
    for case in all_cases(ranks[0]["adversarial rows"]):
        if case.function == "hard" or case.options:
            continue
        rows, width = len(case.k), case.scores.dtype.itemsize
        sizes = Sizes.of(rows, len(ranks))
        sample = HEADER * 8 + rows * sizes.sample * width
        measured = rows * ((COLUMNS + 2 * sizes.pivots) * 8 + sizes.nodes * width)
        for one in ranks:
            forward, size = one["cases"][case.name]["collectives"][:2]
            assert size == sample + (forward - 1) * measured, case.name


def test_ten_runs_give_the_same_bits(ranks: Ranks) -> None:
    for one in ranks:
        assert len(set(one["repeated"])) == 1


def test_any_dimension(ranks: Ranks) -> None:
    for one in ranks:
        for name, worst in one["dims"].items():
            assert worst < 1e-14, name


@pytest.mark.parametrize("name", ["one dtype", "many"])
@pytest.mark.parametrize("hard", [False, True])
def test_lists(ranks: Ranks, name: str, hard: bool) -> None:
    """The lists of all ranks have the masks of one list of all their tensors."""
    dtypes = (torch.float32,) * 3 if name == "one dtype" else DTYPES[1:]
    tensors = [x for rank in range(len(ranks)) for x in list_of(rank, dtypes)]
    tensors = [x.requires_grad_() for x in tensors]
    k = torch.tensor(11.0, dtype=torch.float64, requires_grad=True)
    masks, b = soft_topk_list(tensors, k, 0.3, hard=hard, return_threshold=True)
    torch.autograd.backward(masks, [torch.cos(x.detach()) for x in tensors])
    found = [one["lists"][f"{name} {hard}"] for one in ranks]
    got = [[x for one in found for x in one[i]] for i in (0, 1)]
    for mask, grad, own_mask, tensor in zip(*got, masks, tensors, strict=True):
        close = {"rtol": 4 * torch.finfo(mask.dtype).eps, "atol": 1e-6}
        torch.testing.assert_close(mask, own_mask.detach(), **close)
        torch.testing.assert_close(grad, tensor.grad, **close)
    for _, _, d_k, own_b in found:
        assert d_k == found[0][2]
        assert own_b == found[0][3]
        torch.testing.assert_close(d_k, k.grad, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(own_b, b, rtol=1e-6, atol=1e-7)


def test_layer(ranks: Ranks) -> None:
    """Its masks and the gradients of what it learns are those of whole rows, under DDP as well."""
    for one in ranks:
        said = one["layer"]
        assert "process_group='0'" in said["shown"]
        for name in ("own", "copy", "d budget_logit", "d log_temperature", "ddp"):
            assert said[name] < 1e-6, name
        for name in ("bits of d budget_logit", "bits of d log_temperature"):
            assert said[name] == ranks[0]["layer"][name]
        assert said["pickled"]
        assert said["kept"].startswith("ValueError: keep_threshold must be False with process_gr")


def test_compiled(ranks: Ranks) -> None:
    for one in ranks:
        assert one["compiled"] < 1e-12


MISTAKES = {
    "k": "ValueError: k must be the same on all ranks of group, got 2 on rank",
    "t": "ValueError: temperature must be the same on all ranks of group, got 0.25 on rank",
    "k of a row": "ValueError: k must be the same on all ranks of group, got 3 on rank 0, 4 on",
    "dtype": "ValueError: dtype of scores must be the same on all ranks of group, got float32 on",
    "rows": "ValueError: number of rows must be the same on all ranks of group, got 3 on rank",
    "function": "ValueError: function must be the same on all ranks of group, got 'mask' on rank",
    "over": "ValueError: k must be at most",
    "over, validated": "ValueError: k must lie in [0, number of valid scores] = [0, ",
    "negative": "ValueError: k must be at least 0, got k=-1",
    "not whole": "ValueError: k must be a whole number for a hard mask of exactly k ones, ",
    "warm start": "ValueError: warm_start must be left out for a call with group",
    "lengths": "ValueError: lengths must be left out for a call with group",
    "solver": "ValueError: solver must be 'auto' for a call with group, got solver='bisect'",
    "no group": "TypeError: group must be a torch.distributed.ProcessGroup",
    "second derivative": "NotImplementedError: second derivatives of a call with group",
    "forward mode": "NotImplementedError: torch.func transforms and forward-mode",
    "fine": "no error",
}


def test_mistakes_are_errors_on_every_rank(ranks: Ranks) -> None:
    for name, says in MISTAKES.items():
        said = [one["mistakes"][name] for one in ranks]
        assert all(one.startswith(says) for one in said), (name, said)
        assert len(set(said)) == 1, (name, said)


def test_groups_that_cannot_be_used_are_named(ranks: Ranks) -> None:
    said = [one["mistakes"]["not a member"] for one in ranks]
    assert said[0] == "no error"
    assert all("that this rank is a member of, got group=-100" in one for one in said[1:])
    assert "was destroyed by destroy_process_group" in ranks[0]["mistakes"]["destroyed"]


def test_a_group_that_never_was() -> None:
    with pytest.raises(TypeError, match=r"group must be a torch\.distributed"):
        soft_topk(torch.ones(3), 1, group="all")  # type: ignore[call-overload]
