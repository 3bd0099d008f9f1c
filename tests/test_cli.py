"""The command line does what its help says, and refuses bad arguments by name."""

import itertools
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

import fast_lapsum
import fast_lapsum_command
from fast_lapsum import cli
from fast_lapsum.bench import demo, plots
from fast_lapsum.bench.results import finished_file

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def invoke(*arguments: object) -> Result:
    # Wide and without colour, so that a message is found whole.
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(cli.app, [str(argument) for argument in arguments])


def plain(text: str) -> str:
    """The text without the box that the terminal draws around errors."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_version_is_that_of_the_installed_package() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout.strip() == f"fast-lapsum {fast_lapsum.__version__}"
    assert metadata.version("fast-lapsum") == fast_lapsum.__version__


def test_info_names_versions_and_the_backend_a_call_takes() -> None:
    result = invoke("info")
    assert result.exit_code == 0
    for expected in (fast_lapsum.__version__, "torch", "threads", "a CPU call takes"):
        assert expected in result.stdout


def test_info_json_is_json_with_the_backend_and_its_reason() -> None:
    found = json.loads(invoke("info", "--json").stdout)
    assert found["fast_lapsum"] == fast_lapsum.__version__
    assert found["threads"] >= 1
    backend = found["cpu_backend"]
    assert backend["description"]
    assert backend["available"] == (backend["reason"] is None)


def test_demo_prints_budget_error_and_peers_and_draws_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "mask.png"
    result = invoke("demo", "--n", 5000, "--out", out)
    assert result.exit_code == 0, result.output
    for expected in ("soft_topk", "torch.softmax", "torch.topk", "torch.sort", "Budget"):
        assert expected in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["mask.png"]
    content = out.read_bytes()
    assert content.startswith(PNG_SIGNATURE)
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    assert width > 1000
    assert height > 500
    assert len(content) > 20_000


@pytest.mark.parametrize(
    ("name", "begins"),
    [("mask.pdf", b"%PDF-"), ("mask.svg", b"<?xml"), ("MASK.PNG", PNG_SIGNATURE)],
)
def test_demo_draws_what_the_suffix_says(tmp_path: Path, name: str, begins: bytes) -> None:
    result = invoke("demo", "--n", 2000, "--out", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_demo_spends_the_budget_exactly_for_a_fractional_k(tmp_path: Path) -> None:
    result = invoke("demo", "--n", 4096, "--k", 10.5, "--out", tmp_path / "mask.png")
    assert result.exit_code == 0, result.output
    error = re.search(r"sum p - k = (\S+)", result.stdout)
    assert error is not None
    assert abs(float(error[1])) < 1e-5


def test_a_number_of_scores_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    result = invoke("demo", "--n", "2e3", "--out", tmp_path / "mask.png")
    assert result.exit_code == 0, result.output
    assert "2,000 scores" in result.stdout


@pytest.mark.parametrize("name", ["fast_lapsum", "fast_lapsum.cli"])
def test_the_module_runs_as_a_program(name: str) -> None:
    command = [sys.executable, "-m", name, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"fast-lapsum {fast_lapsum.__version__}"


@pytest.mark.parametrize(
    ("variables", "arguments", "expected"),
    [
        ({}, ["encode", "photo.png"], "passive"),
        ({}, [], "passive"),
        ({}, ["bench", "cpu"], None),
        ({"OMP_WAIT_POLICY": "active"}, ["encode"], "active"),
        ({"GOMP_SPINCOUNT": "100"}, ["encode"], None),
    ],
    ids=str,
)
def test_waiting_threads_sleep(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    arguments: list[str],
    expected: str | None,
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(sys, "argv", ["fast-lapsum", *arguments])
    fast_lapsum_command.wait_without_spinning()
    assert variables.get("OMP_WAIT_POLICY") == expected


def test_the_command_chooses_before_torch_is_loaded() -> None:
    code = "import fast_lapsum_command, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a program cannot begin anew")
@pytest.mark.parametrize("policy", [None, "active"])
def test_the_package_as_a_program_begins_anew_if_torch_was_too_early(
    monkeypatch: pytest.MonkeyPatch, policy: str | None
) -> None:
    """Once: the second time the environment says how threads wait."""

    def begin_anew(program: str, arguments: list[str]) -> None:
        assert program == sys.executable
        assert arguments[1:] == ["-m", "fast_lapsum", "--version"]
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
        raise InterruptedError

    for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", policy or "")
    if policy is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(sys, "argv", ["fast-lapsum", "--version"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "fast_lapsum", "--version"])
    monkeypatch.setattr(os, "execv", begin_anew)
    with pytest.raises(InterruptedError if policy is None else SystemExit):
        runpy.run_module("fast_lapsum", run_name="__main__", alter_sys=False)


def test_demo_without_matplotlib_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    result = invoke("demo", "--n", 2000, "--out", tmp_path / "mask.png")
    assert result.exit_code == 0
    assert "pip install 'fast-lapsum[bench]' (in a checkout: pip install '.[bench]')" in (
        result.stdout
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("demo", "--n", "1"), ("--n", "'1'", "whole number of at least 2")),
        (("demo", "--n", "many"), ("--n", "'many'", "whole number of at least 2")),
        (("demo", "--n", "100", "--k", "200"), ("--k", "200", "below n = 100")),
        (("demo", "--n", "100", "--k", "nan"), ("--k", "'nan'", "finite number above 0")),
        (("demo", "--n", "100", "--k", "0"), ("--k", "'0'", "finite number above 0")),
        (("demo", "--temperature", "-1"), ("--temperature", "'-1'", "finite number above 0")),
        (("demo", "--temperature", "warm"), ("--temperature", "'warm'", "finite number above 0")),
        (("demo", "--device", "abacus"), ("--device", "abacus", "cpu")),
        (("demo", "--device", "cuda:99"), ("--device", "cuda:99", "cpu")),
        (("demo", "--seed", "-3"), ("--seed", "'-3'", "whole number of at least 0")),
        (("demo", "--out", "/no/such/folder/mask.png"), ("--out", "/no/such/folder")),
        (("demo", "--out", "mask.docx"), ("--out", "'mask.docx'", ".png, .pdf, .svg")),
        (("demo", "--out", "mask"), ("--out", "'mask'", ".png, .pdf, .svg")),
        (("bench", "cpu", "--repeats", "0"), ("--repeats", "'0'", "whole number of at least 1")),
        (("bench", "gpu", "--max-n", "1.5"), ("--max-n", "'1.5'", "whole number of at least 1")),
        (("bench", "gpu", "--max-n", "inf"), ("--max-n", "'inf'", "whole number of at least 1")),
        (("fly",), ("fly",)),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_exit_code_2(
    arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    for part in expected:
        assert part in plain(result.output)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ("info", "demo", "bench", "--version")),
        (("info",), ("backend", "--json")),
        (("demo",), ("soft top-k", "--temperature", "Example: fast-lapsum demo")),
        (("bench",), ("cpu", "gpu", "cliffs")),
        (("bench", "cpu"), ("torch.softmax", "--quick", "Example: fast-lapsum bench cpu")),
        (("bench", "gpu"), ("CUDA graphs", "--max-n", "Example: fast-lapsum bench gpu")),
        (("bench", "cliffs"), ("slowest calls", "--out", "Example: fast-lapsum bench cliffs")),
    ],
)
def test_help_says_what_a_command_does(
    arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    result = invoke(*arguments, "--help")
    assert result.exit_code == 0
    for part in expected:
        assert part in plain(result.stdout)


def _commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*before, name)
        if hasattr(command, "commands"):
            yield from _commands(command, *before, name)


@pytest.mark.parametrize("command", list(_commands(get_command(cli.app))), ids=" ".join)
def test_paragraphs_of_help_fill_the_terminal(command: tuple[str, ...]) -> None:
    """No line ends where the next word would have had room, and no example is broken.

    Items of a list begin lines of their own.
    """
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner(env=environment).invoke(cli.app, [*command, "--help"])
    text, _, rest = result.stdout.partition("╭")
    lines = [line.strip() for line in text.splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following and not following.startswith("- "):
            assert len(f" {line} {following.split()[0]} ") > 80, following
    after = [line.strip() for line in rest.rpartition("╯")[2].splitlines()]
    assert len([line for line in after if line]) <= 1


@pytest.mark.parametrize(
    "command", [(), *_commands(get_command(cli.app))], ids=lambda words: " ".join(words) or "none"
)
def test_help_names_no_value_for_a_flag(command: tuple[str, ...]) -> None:
    said = invoke(*command, "--help").stdout
    assert re.search(r"--help +Show this message", said)
    assert not re.search(r"<bool|BOOL", said)


def test_a_failed_picture_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_half_way(scores: object, k: float, path: Path) -> None:
        path.write_bytes(PNG_SIGNATURE)
        raise OSError("disk full")

    monkeypatch.setattr(plots, "draw_masks", fail_half_way)
    result = invoke("demo", "--n", 2000, "--out", tmp_path / "mask.png")
    assert isinstance(result.exception, OSError)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("earlier")
    with suppress(RuntimeError), finished_file(path) as unfinished:
        unfinished.write_text("half")
        raise RuntimeError
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("result.json", "earlier")]


def test_demo_is_the_same_for_the_same_seed() -> None:
    device = cli.environment.best_device()
    first, second = (demo.run(1000, 50, 0.1, device, seed=7) for _ in range(2))
    assert first.scores.equal(second.scores)
    assert first.budget_error == second.budget_error


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="this system has no load average")
def test_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for load, is_told in ((0.0, False), (1e6, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        result = invoke("demo", "--n", 2000, "--device", "cpu", "--out", tmp_path / "mask.png")
        assert ("OMP_WAIT_POLICY" in result.stdout) is is_told
