"""What computes is chosen once, and said: kernels of a level, or plain PyTorch and why."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from noria.services.executor.cpu import backend
from noria.services.executor.cpu.native import library
from noria.services.executor.cpu.native.build import BuildError, build
from noria.services.executor.model.packed_weights import identity, packed_path
from noria.shared.errors import UserError
from noria.shared.model.model_folder import BLOCKS


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a library where there is none."""
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    library._library.cache_clear()
    yield tmp_path
    library._library.cache_clear()


def test_plain_pytorch_serves_where_no_kernels_were_built(elsewhere: Path) -> None:
    chosen = backend.choose_backend("auto", "none")
    assert chosen.kernels is None
    assert "plain PyTorch: the kernels were not built" in chosen.name
    assert library.levels() == []


def test_a_library_that_is_none_is_not_used(elsewhere: Path) -> None:
    (elsewhere / library.LIBRARY).write_text("no library")
    assert "cannot be loaded" in backend.choose_backend("auto", "none").name


def test_what_is_asked_for_by_name_and_missing_is_an_error(elsewhere: Path) -> None:
    with pytest.raises(UserError, match=r"executor\.kernels is avx2, but the kernels were not built"):
        backend.choose_backend("avx2", "none")
    with pytest.raises(UserError, match=r"executor\.quantization int8 needs native kernels.*not built"):
        backend.choose_backend("auto", "int8")


def test_plain_pytorch_does_not_quantise() -> None:
    assert backend.choose_backend("reference", "none").kernels is None
    with pytest.raises(UserError, match="int8 needs native kernels"):
        backend.choose_backend("reference", "int8")


@pytest.mark.skipif(not library.levels(), reason="the kernels are not built")
def test_each_level_of_this_processor_can_be_chosen() -> None:
    for level in library.levels():
        assert backend.choose_backend(level, "int8").name == f"{level}, int8 weights"


def test_a_build_without_a_compiler_says_which_one_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --flag")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler: no-such-compiler"):
        build(tmp_path / "library.so")
    assert not (tmp_path / "library.so").exists()


def test_packed_weights_are_another_models_when_anything_changes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(100_000))
    dtype = torch.bfloat16
    seen = {
        identity(tmp_path, dtype, "none"),
        identity(tmp_path, dtype, "int8"),
        identity(tmp_path, torch.float32, "none"),
    }
    assert identity(tmp_path, dtype, "none") in seen
    (tmp_path / "config.json").write_text('{"a": 1}')
    seen.add(identity(tmp_path, dtype, "none"))
    (tmp_path / "model.safetensors").write_bytes(b"\1" + bytes(99_999))
    seen.add(identity(tmp_path, dtype, "none"))
    seen.add(identity(tmp_path, dtype, "int8"))
    (tmp_path / BLOCKS).write_bytes(bytes(1000))
    assert identity(tmp_path, dtype, "none") in seen, "only int8 products use blocks"
    seen.add(identity(tmp_path, dtype, "int8"))
    assert len(seen) == 7
    assert packed_path(tmp_path, dtype, "none") != packed_path(tmp_path, dtype, "int8")


@pytest.mark.parametrize(("kernels", "quantization"), [("triton", "none"), ("auto", "fp8")])
def test_what_is_of_gpus_is_refused_on_a_processor(kernels: str, quantization: str) -> None:
    with pytest.raises(UserError, match=r"(of|for) GPUs"):
        backend.choose_backend(kernels, quantization)
