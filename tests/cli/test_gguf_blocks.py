"""A GGUF file becomes a folder with the blocks of its weights beside them, in the folder's names and order of rows."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from fakes.tiny_gguf import HEADS, HIDDEN, SHAPES, write_tiny_gguf
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize, quantize
from safetensors.torch import load_file

from noria.cli.model_files.fetch import pull
from noria.shared.config.config import ModelSettings
from noria.shared.model.model_folder import BLOCK_BYTES, BLOCKS

KINDS = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1)


def quiet(stage: str, done: int, total: int) -> None:
    del stage, done, total


def pulled(folder: Path, kinds: dict[str, Kind]) -> Path:
    gguf = write_tiny_gguf(folder / "tiny.gguf", kinds)
    return pull(str(gguf), ModelSettings(cache_dir=str(folder / "cache")), quiet)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pulled(tmp_path_factory.mktemp("mixed"), dict(zip(SHAPES, KINDS, strict=True)))


def test_every_weights_blocks_are_kept_and_give_the_folders_numbers(folder: Path) -> None:
    weights, blocks = load_file(folder / "model.safetensors"), load_file(folder / BLOCKS)
    assert set(blocks) == {name for name, weight in weights.items() if weight.dim() == 2}
    for name, rows in blocks.items():
        groups = weights[name].shape[1] // 32
        kinds = {size: kind for kind, size in BLOCK_BYTES.items()}
        found = dequantize(rows.numpy(), Kind[kinds[rows.shape[1] // groups]])
        assert torch.equal(torch.from_numpy(found), weights[name]), name


def test_rows_of_queries_and_keys_are_in_the_folders_order_not_the_files(folder: Path) -> None:
    made = np.random.default_rng(1).standard_normal(SHAPES["blk.0.attn_q"], dtype=np.float32)
    rows = quantize(made, Kind.Q4_0)
    kept = load_file(folder / BLOCKS)["model.layers.0.self_attn.q_proj.weight"].numpy()
    dim = HIDDEN // HEADS
    order = [head * dim + 2 * pair + half for head in range(HEADS) for half in (0, 1) for pair in range(dim // 2)]
    assert np.array_equal(kept, rows[order])


def test_weights_of_other_types_are_not_kept(tmp_path: Path) -> None:
    folder = pulled(tmp_path, {"blk.0.ffn_up": Kind.Q8_0, "blk.0.attn_v": Kind.F16})
    assert list(load_file(folder / BLOCKS)) == ["model.layers.0.mlp.up_proj.weight"]


def test_a_file_without_such_blocks_leaves_no_file(tmp_path: Path) -> None:
    folder = pulled(tmp_path, {})
    assert msgspec.json.decode((folder / "config.json").read_bytes())["model_type"] == "llama"
    assert not (folder / BLOCKS).exists()
