"""The text of a stream equals the tokenizer's decoding of all its ids, however they arrive."""

import codecs
import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from fakes.vocabularies import TEXTS, byte_fallback, byte_level, id_of, metaspace, real, word_piece
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.services.detokenizer.core.text_decoder import TextDecoder, make_decoder
from noria.services.detokenizer.core.vocabulary import Vocabulary
from noria.services.detokenizer.service import vocabulary_of
from noria.shared.model.tokenizer import Tokenizer

EXACT: list[Callable[[], Tokenizer]] = [byte_level, byte_fallback, lambda: byte_fallback(strip=False)]
WINDOWED: list[Callable[[], Tokenizer]] = [metaspace, word_piece]


def decode(vocabulary: Vocabulary, ids: Sequence[int], skip: bool = True, tail: Sequence[int] = ()) -> str:
    stream: TextDecoder = make_decoder(vocabulary, tail, skip)
    return "".join(stream.push(token) for token in ids) + stream.flush()


@pytest.mark.parametrize("make", [*EXACT, *WINDOWED])
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_ids_decode_as_the_tokenizer_decodes_them(
    make: Callable[[], Tokenizer], skip: bool, data: st.DataObject
) -> None:
    tokenizer = make()
    some = st.integers(0, tokenizer.vocabulary + 2)
    ids = data.draw(st.lists(some | st.sampled_from(sorted(tokenizer.special)), max_size=40))
    assert decode(vocabulary_of(tokenizer), ids, skip) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("make", [*EXACT, *WINDOWED])
@pytest.mark.parametrize("text", TEXTS)
def test_texts_cut_anywhere_decode_as_the_tokenizer_decodes_them(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    vocabulary = vocabulary_of(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    for start in range(len(ids) + 1):
        for end in range(start, len(ids) + 1):
            assert decode(vocabulary, ids[start:end]) == tokenizer.decode(ids[start:end])


@pytest.mark.model
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_ids_of_the_real_model_decode_as_the_tokenizer_decodes_them(data: st.DataObject) -> None:
    # The first 400 ids hold every single byte, so that broken characters are common.
    ids = data.draw(st.lists(st.integers(0, 400) | st.integers(0, 49151), max_size=60))
    skip = data.draw(st.booleans())
    assert decode(_real_vocabulary(), ids, skip) == real().decode(ids, skip)


@pytest.mark.model
def test_texts_of_the_real_model_cut_anywhere_decode_as_the_tokenizer_decodes_them() -> None:
    for text in TEXTS:
        ids = real().encode(text)
        for end in range(len(ids) + 1):
            assert decode(_real_vocabulary(), ids[:end]) == real().decode(ids[:end])


_VOCABULARIES: list[Vocabulary] = []


def _real_vocabulary() -> Vocabulary:
    if not _VOCABULARIES:
        _VOCABULARIES.append(vocabulary_of(real()))
    return _VOCABULARIES[0]


def test_broken_bytes_are_replaced_as_the_tokenizer_replaces_them() -> None:
    tokenizer = byte_level()
    table = {piece: token for token, piece in enumerate(tokenizer.byte_table()) if piece and len(piece) == 1}
    seeds = [
        0x41,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC2,
        0xE0,
        0xE1,
        0xED,
        0xEF,
        0xF0,
        0xF1,
        0xF4,
        0xF5,
        0xFF,
    ]
    vocabulary = vocabulary_of(tokenizer)
    for length in (1, 2, 3):
        for values in itertools.product(seeds, repeat=length):
            ids = [table[bytes([value])] for value in values]
            assert decode(vocabulary, ids) == tokenizer.decode(ids) == bytes(values).decode(errors="replace")


def test_text_is_given_out_as_soon_as_it_is_final() -> None:
    vocabulary = vocabulary_of(byte_level())
    table = {piece: token for token, piece in enumerate(vocabulary.pieces) if len(piece) == 1}
    stream = make_decoder(vocabulary, (), True)
    given_out = [stream.push(table[bytes([byte])]) for byte in "é😀".encode() + b"\xf0\x9fA\xffB"]
    assert given_out == ["", "é", "", "", "", "😀", "", "", "\ufffdA", "\ufffd", "B"]


def test_a_genuine_replacement_character_is_not_held_back() -> None:
    for tokenizer in (byte_level(), byte_fallback()):
        stream = make_decoder(vocabulary_of(tokenizer), (), True)
        ids = tokenizer.encode("a\ufffd", add_special_tokens=False)
        assert "".join(map(stream.push, ids)).endswith("\ufffd")


def test_a_run_of_bytes_waits_for_its_end_because_one_broken_byte_changes_all_of_it() -> None:
    tokenizer = byte_fallback()
    stream = make_decoder(vocabulary_of(tokenizer), (), True)
    letter = id_of(tokenizer, "a")
    run = [id_of(tokenizer, f"<0x{byte:02X}>") for byte in b"hi\xff"]
    assert [*map(stream.push, run), stream.push(letter)] == ["", "", "", "\ufffd\ufffd\ufffda"]


@pytest.mark.parametrize("make", [byte_fallback, metaspace])
def test_an_output_that_continues_a_text_keeps_its_leading_space(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    prompt = tokenizer.encode("a", add_special_tokens=False)
    ids = tokenizer.encode("hello", add_special_tokens=False)
    whole = tokenizer.decode([*prompt, *ids])
    vocabulary = vocabulary_of(tokenizer)
    assert decode(vocabulary, ids, tail=prompt) == whole.removeprefix(tokenizer.decode(prompt)) == " hello"
    assert decode(vocabulary, ids) == tokenizer.decode(ids) == "hello"


def test_a_prompt_of_special_tokens_alone_shows_no_text_to_continue() -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.encode("hello", add_special_tokens=False)
    start = id_of(tokenizer, "<s>")
    vocabulary = vocabulary_of(tokenizer)
    assert decode(vocabulary, ids, tail=[start]) == tokenizer.decode([start, *ids]) == "hello"
    assert "<s>" + decode(vocabulary, ids, skip=False, tail=[start]) == tokenizer.decode([start, *ids], False)


def test_python_replaces_broken_bytes_alike_in_one_go_and_in_pieces() -> None:
    chance = random.Random(5)
    for _ in range(3000):
        data = bytes(
            chance.choice((0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xFF)) for _ in range(8)
        )
        pieces = codecs.getincrementaldecoder("utf-8")("replace")
        text = "".join(pieces.decode(data[index : index + 1]) for index in range(len(data))) + pieces.decode(b"", True)
        assert text == data.decode(errors="replace")
