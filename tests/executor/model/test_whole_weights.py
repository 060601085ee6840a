"""A folder's weights are whole or refused before any of them is read: names, shapes, kinds, files and their lengths."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from fakes.tiny_weights import write_tiny_weights
from safetensors.torch import load_file, save_file

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.loading import load
from noria.services.executor.runner.loaded_model import LoadedModel, log_loaded_model
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError

UP = "model.layers.1.mlp.up_proj.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


def loaded(folder: Path) -> LoadedModel:
    config = ExecutorConfig(
        model=ModelSettings(name=str(folder), dtype="float32"),
        max_slots=4,
        max_batch_tokens=64,
        page_size=16,
        num_blocks=80,
        max_memory_percent=0.5,
        threads=1,
        kernels="reference",
        keep_packed=False,
        calibrate=False,
    )
    return load(config)[1]


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        loaded(folder)
    words = str(refused.value)
    assert "\n" not in words and str(folder) in words and "; " in words
    return words


def changed(folder: Path, change: Callable[[Tensors], Any], **config: Any) -> Path:
    """A tiny model whose tensors were changed before they were written."""
    write_tiny_weights(folder, **config)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def sharded(folder: Path) -> Path:
    """A tiny model in two shards and an index."""
    write_tiny_weights(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    half = len(names) // 2
    for file, part in ((FIRST, names[:half]), (SECOND, names[half:])):
        save_file({name: tensors[name] for name in part}, folder / file)
    owners = {name: FIRST if index < half else SECOND for index, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"weight_map": owners}))
    return folder


def reindexed(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_whole_models_are_served_in_one_file_and_in_shards(tmp_path: Path) -> None:
    assert loaded(write_tiny_weights(tmp_path / "one")).unused == ()
    assert loaded(sharded(tmp_path / "two")).unused == ()


def test_a_missing_tensor_is_refused_by_name(tmp_path: Path) -> None:
    assert f"lacks {UP}; " in refusal(changed(tmp_path, lambda tensors: tensors.pop(UP)))


def test_a_tensor_under_another_name_is_refused_naming_both(tmp_path: Path) -> None:
    words = refusal(changed(tmp_path, lambda tensors: tensors.update({"up": tensors.pop(UP)})))
    assert f"lacks {UP} (it holds up, which nothing uses); " in words


@pytest.mark.parametrize("says", [False, None])
def test_a_head_of_its_own_that_is_missing_is_not_the_embedding(tmp_path: Path, says: bool | None) -> None:
    write_tiny_weights(tmp_path, tie_word_embeddings=says)
    assert "lacks lm_head.weight; " in refusal(tmp_path)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    words = refusal(changed(tmp_path, lambda tensors: tensors.update({UP: torch.zeros(32, 48)})))
    assert f"{UP} in the model folder {tmp_path} has shape (32, 48), expected (48, 32); " in words


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_numbers_that_mean_nothing_without_their_scales_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    words = refusal(changed(tmp_path, lambda tensors: tensors.update({UP: tensors[UP].to(dtype)})))
    assert f"{UP} in the model folder {tmp_path} is of kind " in words


def test_what_is_not_used_is_served_and_logged_by_name(tmp_path: Path) -> None:
    folder = changed(tmp_path, lambda tensors: tensors.update({"visual.weight": torch.zeros(2)}))
    save_file({"x": torch.zeros(1)}, folder / "consolidated.safetensors")
    found = loaded(folder)
    assert found.unused == ("consolidated.safetensors", "visual.weight")
    with structlog.testing.capture_logs() as lines:
        log_loaded_model(found, structlog.get_logger())
    assert {
        "event": "weights are not used",
        "count": 2,
        "names": ["consolidated.safetensors", "visual.weight"],
        "log_level": "warning",
    } in lines


def test_a_single_file_goes_before_shards_whose_files_are_named(tmp_path: Path) -> None:
    write_tiny_weights(sharded(tmp_path))
    assert loaded(tmp_path).unused == (FIRST, SECOND)


@pytest.mark.parametrize("lost", [1, 1000])
def test_a_file_that_is_cut_short_is_refused_with_both_sizes(tmp_path: Path, lost: int) -> None:
    path = write_tiny_weights(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    words = refusal(tmp_path)
    assert f"model.safetensors has {len(whole) - lost} bytes, expected {len(whole)}: it is cut short; " in words


def test_a_shard_that_is_cut_short_within_its_header_is_named(tmp_path: Path) -> None:
    path = sharded(tmp_path) / SECOND
    path.write_bytes(path.read_bytes()[:100])
    assert f"{SECOND} has 100 bytes, expected more than " in refusal(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / SECOND).unlink()
    assert f"{SECOND}: No such file or directory; " in refusal(tmp_path)


def test_a_shard_that_the_index_lacks_is_named_beside_the_tensors_that_are_missing(tmp_path: Path) -> None:
    def forget(owners: dict[str, str]) -> None:
        for name in [name for name, file in owners.items() if file == SECOND]:
            del owners[name]

    reindexed(sharded(tmp_path), forget)
    words = refusal(tmp_path)
    assert "lacks model.layers.1." in words and f"(it holds {SECOND}, which nothing uses); " in words


def test_a_tensor_that_is_not_in_the_shard_of_the_index_is_named(tmp_path: Path) -> None:
    reindexed(sharded(tmp_path), lambda owners: owners.update({UP: FIRST, "more": SECOND}))
    assert f"{INDEX} says that {FIRST} holds {UP}, but it does not; " in refusal(tmp_path)


@pytest.mark.parametrize("file", ["../weights.safetensors", "/weights.safetensors", ""])
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path, file: str) -> None:
    reindexed(sharded(tmp_path), lambda owners: owners.update({UP: file}))
    assert "is not a file of the folder; " in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"weight_map": 1}', b"\xff\xfe"])
def test_a_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (sharded(tmp_path) / INDEX).write_bytes(content)
    assert f"{INDEX} is damaged: " in refusal(tmp_path)


@pytest.mark.parametrize(
    "header", [b"{", b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, -4]}}', b"\xff"]
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: bytes) -> None:
    (write_tiny_weights(tmp_path) / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "the header of model.safetensors is damaged: " in refusal(tmp_path)
