"""Installing where the kernel cannot be built, and what the calls of such a package say."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fast_lapsum import sample_topk, select_topk, soft_topk
from fast_lapsum.backends.cpu import kernel, loader

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys, scikit_build_core.build as b; print(b.build_wheel(sys.argv[1]))"

#: Compilers as they are found in the wild, by what they do when they are called.
BROKEN = {
    "compiles nothing": "echo cannot compile >&2; exit 1",
    "compiles no kernel": 'case "$*" in *lapsum.cpp*) exit 1;; esac; exec c++ "$@"',
}


def _wheel(folder: Path, compiler: str) -> Path:
    environment = {**os.environ, "CXX": compiler}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def _libraries(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert "fast_lapsum/backends/cpu/loader.py" in archive.namelist()
        return [name for name in archive.namelist() if "/_lapsum." in name]


@pytest.mark.skipif(os.name != "posix", reason="the compilers are shell scripts")
@pytest.mark.parametrize("kind", [*BROKEN, "is not there"])
def test_a_compiler_that_fails_does_not_end_the_install(kind: str, tmp_path: Path) -> None:
    """The wheel has no kernel, and is one for every platform."""
    if kind == "compiles no kernel" and shutil.which("c++") is None:
        pytest.skip("this system has no C++ compiler that works")
    compiler = tmp_path / "compiler"
    if kind in BROKEN:
        compiler.write_text(f"#!/bin/sh\n{BROKEN[kind]}\n")
        compiler.chmod(0o755)
    wheel = _wheel(tmp_path, str(compiler))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not _libraries(wheel)


@pytest.mark.slow  # compiles the kernel once more, half a minute on one core
@pytest.mark.skipif(shutil.which("c++") is None, reason="this system has no C++ compiler")
def test_a_wheel_with_the_kernel_is_one_for_its_platform(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "c++")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    assert len(_libraries(wheel)) == 1


def _symbols() -> ModuleType:
    """packaging/manylinux_symbols.py, by its path: there is a package of the folder's name."""
    path = ROOT / "packaging" / "manylinux_symbols.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is of Linux")
@pytest.mark.skipif(not loader.status().available, reason="the C++ kernel is not there")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="this system has no objdump")
def test_the_kernel_needs_nothing_newer_than_its_wheels_say() -> None:
    path = loader.status().path
    assert path is not None
    _symbols().check(Path(path))


def test_a_symbol_that_is_too_new_is_named() -> None:
    table = """
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.14) memcpy
0000000000000000      DF *UND*  0000000000000000 (GLIBCXX_3.4.29) std::__throw_bad()
0000000000000000      DF *UND*  0000000000000000 (GLIBC_2.38) __isoc23_strtol
0000000000000000      DF *UND*  0000000000000000 (GOMP_4.5)   GOMP_parallel
"""
    found = _symbols().too_new(table)
    assert found == ["std::__throw_bad() (GLIBCXX_3.4.29)", "__isoc23_strtol (GLIBC_2.38)"]


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As after an install without a compiler, on a machine that has one by now."""
    monkeypatch.setattr(loader, "_PATH", tmp_path / "_lapsum.so")
    monkeypatch.setattr(kernel, "_library", None)
    monkeypatch.setenv("CXX", sys.executable)  # something that is there
    loader._load.cache_clear()
    loader.hint_at_building.cache_clear()
    yield
    monkeypatch.undo()
    loader._load.cache_clear()
    loader.hint_at_building.cache_clear()


def _warned() -> list[str]:
    scores = torch.randn(3, 9, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            soft_topk(scores, 2).sum().backward()
            select_topk(scores, 2)
            sample_topk(scores, 2)
    return [str(warning.message) for warning in caught]


@pytest.mark.usefixtures("without_kernel")
def test_a_kernel_that_could_be_built_is_hinted_at_once() -> None:
    (said,) = _warned()
    for part in ("without the C++ kernel", "is not there", sys.executable, "pip install", "-v"):
        assert part in said
    assert f"--editable {ROOT}" in said


@pytest.mark.usefixtures("without_kernel")
def test_the_hint_of_an_installed_package_has_no_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loader, "_CHECKOUT", tmp_path)
    (said,) = _warned()
    assert "pip install --force-reinstall --no-deps --no-cache-dir ." in said


@pytest.mark.usefixtures("without_kernel")
def test_no_hint_where_nothing_could_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not _warned()


@pytest.mark.usefixtures("without_kernel")
def test_a_hint_is_for_calls_on_a_cpu() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kernel.supports(torch.empty(3, device="meta"))


@pytest.mark.skipif(not loader.status().available, reason="the C++ kernel is not there")
def test_no_hint_where_the_kernel_is() -> None:
    loader.hint_at_building.cache_clear()
    assert not _warned()
