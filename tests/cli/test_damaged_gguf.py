"""A GGUF file is converted whole or not at all: what lacks, does not fit, or is left over is named."""

import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.tiny_gguf import HIDDEN, INNER, NORMS, SHAPES, VOCABULARY, write_tiny_gguf
from safetensors.torch import load_file

from noria.cli.model_files.fetch import pull
from noria.cli.model_files.gguf_header import GgufHeader, read_gguf
from noria.cli.model_files.gguf_tensors import check_gguf
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError


def quiet(stage: str, done: int, total: int) -> None:
    del stage, done, total


def refusal(gguf: Path) -> str:
    """Why a file is not converted, in one line; nothing of it may be kept."""
    cache = gguf.parent / "cache"
    with pytest.raises(UserError) as refused:
        pull(str(gguf), ModelSettings(cache_dir=str(cache)), quiet)
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []
    words = str(refused.value)
    assert "\n" not in words and str(gguf) in words
    return words


def test_a_tensor_under_another_name_is_refused_naming_both(tmp_path: Path) -> None:
    words = refusal(write_tiny_gguf(tmp_path / "m.gguf", names={"blk.0.ffn_up": "blk.0.ffn_upp"}))
    assert "lacks blk.0.ffn_up.weight (it holds blk.0.ffn_upp.weight, which nothing uses)" in words


@pytest.mark.parametrize("name", ["token_embd", "blk.0.attn_k", "blk.0.ffn_norm", "output_norm"])
def test_a_missing_tensor_is_refused_by_name(tmp_path: Path, name: str) -> None:
    assert f"lacks {name}.weight; " in refusal(write_tiny_gguf(tmp_path / "m.gguf", without=[name]))


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    words = refusal(write_tiny_gguf(tmp_path / "m.gguf", shapes={"blk.0.ffn_up": (INNER - 32, HIDDEN)}))
    assert f"blk.0.ffn_up.weight in {tmp_path / 'm.gguf'} has shape ({INNER - 32}, {HIDDEN})" in words
    assert f"expected ({INNER}, {HIDDEN})" in words


def test_a_turned_tensor_is_refused_too(tmp_path: Path) -> None:
    words = refusal(write_tiny_gguf(tmp_path / "m.gguf", shapes={"blk.0.ffn_up": (HIDDEN, INNER)}))
    assert f"has shape ({HIDDEN}, {INNER}), expected ({INNER}, {HIDDEN})" in words


def test_a_tensor_that_nothing_uses_is_named_and_the_others_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = write_tiny_gguf(tmp_path / "m.gguf", shapes={"rope_freqs": (8,), "blk.7.ffn_up": (INNER, HIDDEN)})
    folder = pull(str(gguf), ModelSettings(cache_dir=str(tmp_path / "cache")), quiet)
    assert len(load_file(folder / "model.safetensors")) == len(SHAPES) + len(NORMS)
    warning = f"warning: 2 tensors of {gguf} are not used: blk.7.ffn_up.weight, rope_freqs.weight\n"
    assert capsys.readouterr().err.endswith(warning)


PULL = """
import sys
from noria.cli import main
status = main()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("without", "blocks", "words"),
    [
        ([*SHAPES, *NORMS], None, "holds no weights, only a vocabulary; "),
        ([*SHAPES], None, "has 3 tensors for llama.block_count 0, "),
        ([*SHAPES], 10**6, "has 3 tensors for llama.block_count 1000000, "),
    ],
)
def test_a_file_of_a_vocabulary_only_is_refused_before_memory_is_taken(
    tmp_path: Path, without: list[str], blocks: int | None, words: str
) -> None:
    gguf = write_tiny_gguf(tmp_path / "m.gguf", without=without, blocks=blocks)
    command = [sys.executable, "-c", PULL, "models", "pull", str(gguf), "--model-cache-dir", str(tmp_path / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert words in ended.stderr and ended.stderr.count("\n") == 1
    assert int(ended.stdout) < 200 << 10, "KiB, at most"


def test_a_file_that_is_cut_short_is_refused_with_both_sizes(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "m.gguf")
    whole = gguf.read_bytes()
    gguf.write_bytes(whole[:-1])
    assert f"is cut short: it has {len(whole) - 1} bytes, expected {len(whole)}; " in refusal(gguf)
    gguf.write_bytes(whole[:300])
    assert "is cut short: it has 300 bytes and ends within its header" in refusal(gguf)


def test_a_file_is_refused_at_every_length_but_its_own(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "m.gguf")
    whole = gguf.read_bytes()
    assert set(read_gguf(gguf).tensors) == {f"{name}.weight" for name in (*SHAPES, *NORMS)}
    for length in (*range(0, 2000, 7), *range(2000, len(whole), 1999)):
        gguf.write_bytes(whole[:length])
        with pytest.raises(UserError):
            read_gguf(gguf)


def test_a_damaged_header_is_read_or_refused_and_never_takes_long(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "m.gguf")
    whole, dice, refused = gguf.read_bytes(), random.Random(1), 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[dice.randrange(2000)] = dice.choice((0, 1, 9, 127, 255, dice.randrange(256)))
        gguf.write_bytes(damaged)
        try:
            read_gguf(gguf)
        except UserError:
            refused += 1
    assert refused > 100


def test_a_part_of_a_model_says_that_it_is_one(tmp_path: Path) -> None:
    assert "is one of 3 parts of a model" in refusal(write_tiny_gguf(tmp_path / "m.gguf", parts=3))


def test_a_disk_that_takes_no_more_keeps_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "m.gguf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (gguf.stat().st_size // 2, before[1]))
    try:
        words = refusal(gguf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"into {tmp_path / 'cache'}: " in words and "make room" in words


def test_experts_that_two_tensors_make_need_both_of_them() -> None:
    experts = {f"model.layers.{n}.mlp.experts.gate_up_proj": (4, 2 * INNER, HIDDEN) for n in range(2)}
    shapes = {f"blk.{n}.ffn_{part}_exps.weight": (4, INNER, HIDDEN) for n in range(2) for part in ("gate", "up")}
    values: dict[str, int | float | str] = {"general.architecture": "qwen3moe", "qwen3moe.block_count": 2}
    assert check_gguf(Path("m.gguf"), GgufHeader(shapes, values), experts) == ()
    del shapes["blk.1.ffn_up_exps.weight"]
    with pytest.raises(UserError, match=r"m\.gguf lacks blk\.1\.ffn_up_exps\.weight; "):
        check_gguf(Path("m.gguf"), GgufHeader(shapes, values), experts)


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(tmp_path: Path) -> None:
    words = refusal(write_tiny_gguf(tmp_path / "m.gguf", shapes={"token_embd": (VOCABULARY + 8, HIDDEN)}))
    assert f"token_embd.weight in {tmp_path / 'm.gguf'} has shape ({VOCABULARY + 8}, {HIDDEN})" in words
