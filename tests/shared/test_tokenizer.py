"""The model's tokenizer equals what transformers makes of the same folder."""

import json
from pathlib import Path

import pytest
from fakes.vocabularies import TEXTS, byte_fallback, byte_level, id_of, metaspace, real, real_folder, word_piece
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from noria.shared.errors import UserError
from noria.shared.model.tokenizer import TokenBytesScheme, Tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, settings: dict[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def bytes_of(tokenizer: Tokenizer, token: str) -> bytes | None:
    return tokenizer.byte_table()[id_of(tokenizer, token)]


@pytest.mark.model
def test_ids_of_the_real_model_equal_those_of_transformers() -> None:
    reference = AutoTokenizer.from_pretrained(real_folder())
    for text in [*TEXTS, "<|im_start|>user\nhi<|im_end|>"]:
        assert real().encode(text) == reference(text)["input_ids"], text
        plain = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert real().encode_plain(text) == plain, text
        assert real().decode(real().encode(text)) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert real().vocabulary == len(reference) == 49152
    assert set(real().special) == set(reference.all_special_ids) | set(range(17))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False, "add_eos_token": True},
        {"eos_token": "<new end>"},
        {"pad_token": {"content": "<pad>", "__type": "AddedToken"}},
    ],
)
def test_what_surrounds_a_plain_prompt_follows_the_settings_as_in_transformers(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
    } | settings
    folder = write_folder(tmp_path / "model", byte_level(), settings)
    ours = Tokenizer.load(folder)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in [*TEXTS, "a<new end>b<pad>c"]:
        assert ours.encode(text) == reference(text)["input_ids"], text
        assert ours.encode(text, add_special_tokens=False) == reference(text, add_special_tokens=False)["input_ids"]
    assert ours.vocabulary == len(reference)


def test_a_post_processor_in_the_file_adds_what_the_model_expects(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", byte_fallback(), {"bos_token": "<s>", "eos_token": "</s>"})
    ours = Tokenizer.load(folder)
    start = id_of(ours, "<s>")
    assert ours.encode("hello")[0] == start
    assert start not in ours.encode("hello", add_special_tokens=False)
    assert ours.encode("hello") == PreTrainedTokenizerFast.from_pretrained(folder)("hello")["input_ids"]


def test_special_token_text_is_ordinary_when_encoded_plainly() -> None:
    tokenizer = byte_level()
    assert id_of(tokenizer, "<|end|>") in tokenizer.encode("a<|end|>b")
    assert not set(tokenizer.encode_plain("a<|end|>b")) & set(tokenizer.special)
    assert tokenizer.decode(tokenizer.encode_plain("a<|end|>b")) == "a<|end|>b"


def test_the_scheme_follows_the_decoder() -> None:
    assert byte_level().scheme is TokenBytesScheme.BYTES
    assert byte_fallback().scheme is TokenBytesScheme.FALLBACK
    assert (byte_fallback().strip_left, byte_fallback(strip=False).strip_left) == (1, 0)
    assert metaspace().scheme is TokenBytesScheme.WINDOW
    assert word_piece().scheme is TokenBytesScheme.WINDOW
    assert len(byte_fallback().byte_ids()) == 256
    assert byte_level().byte_ids() == frozenset()


def test_the_bytes_of_every_byte_level_token_are_what_it_decodes_to() -> None:
    tokenizer = byte_level()
    table = tokenizer.byte_table()
    assert len(table) == tokenizer.vocabulary
    for token, piece in enumerate(table):
        assert piece is not None
        assert piece.decode(errors="replace") == tokenizer.decode([token], skip_special_tokens=False)
    assert bytes_of(tokenizer, "wörld peace") == "wörld peace".encode()


def test_a_fallback_token_is_its_byte_or_its_text() -> None:
    tokenizer = byte_fallback()
    assert bytes_of(tokenizer, "<0xF0>") == b"\xf0"
    assert bytes_of(tokenizer, "▁hello") == b" hello"
    assert bytes_of(tokenizer, "<0x4") == b"<0x4"
    assert set(metaspace().byte_table()) == {None}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "tokenizer.json"),
        ({"tokenizer.json": "{"}, "is not a tokenizer"),
        ({"tokenizer.json": '{"model": 3}'}, "is not a tokenizer"),
    ],
)
def test_a_missing_or_broken_file_is_named(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=reason):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["[", "[]"])
def test_broken_settings_are_named(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path / "model", byte_level(), {})
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)
