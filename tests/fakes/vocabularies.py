"""Small tokenizers of every kind, made in memory, and the real one of the small model."""

from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from noria.shared.config.sources import load
from noria.shared.model.model_folder import resolve_model_folder
from noria.shared.model.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, again and again and again.",
    "Grüße aus Köln: naïve café, crème brûlée, señor — “quoted” text… 100 % done",
    "家族は東京に住んでいます。我们在北京。안녕하세요 세계",
    "😀😁 👩‍👩‍👧‍👦 🇩🇪 e\u0301 a\u0308 \ufffd end",
    "def f(x):\n    return  x  +   1\n\n\n\ttabs",
]
TEXTS = [
    "",
    " ",
    "hello",
    " hello  world   !",
    "line\n\n\n  indented\ttab",
    "👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽",
    "e\u0301 cafe\u0301 a\u0308\u0323",
    "漢字かな交じり文 안녕 中文",
    "\ufffd genuine \ufffd\ufffd",
    "<|end|> looks special, <s> too",
    "𒀀𒁀 rare 𓀀",
]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token, given as the vocabulary spells it."""
    found = tokenizer._backend.token_to_id(token)
    assert found is not None
    return int(found)


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE with special tokens and added ones that are not in the byte alphabet."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(
        [
            AddedToken("wörld peace", special=False),
            AddedToken("🙂added", special=False),
            AddedToken("Ġé", special=False),
        ]
    )
    return Tokenizer(backend, {"bos_token": "<|start|>", "eos_token": "<|end|>"})


@cache
def byte_fallback(strip: bool = True) -> Tokenizer:
    """A sentencepiece-like BPE with byte fallback; `strip` takes one space from the beginning, as Llama's does."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for piece in (
        "▁",
        "▁▁",
        "▁▁▁",
        "a",
        "b",
        "c",
        "h",
        "e",
        "l",
        "o",
        "▁a",
        "▁b",
        "é",
        "▁é",
        "\ufffd",
        "<0x4",
        "字",
        "!",
    ):
        vocabulary[piece] = len(vocabulary)
    for piece in ("he", "hel", "hell", "hello", "▁hello"):
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "▁"), ("▁▁", "▁"), ("▁", "a"), ("▁", "b"), ("h", "e"), ("he", "l"), ("hel", "l"), ("hell", "o")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=[*merges, ("▁", "hello")], byte_fallback=True, unk_token="<unk>", fuse_unk=True
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    last = [decoders.Strip(" ", 1, 0)] if strip else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": {"content": "<unk>"}})


@cache
def metaspace() -> Tokenizer:
    """A unigram model with a Metaspace decoder, which needs the window."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=180, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, {"eos_token": "</s>", "unk_token": "<unk>"})


@cache
def word_piece() -> Tokenizer:
    """A WordPiece model, whose decoder joins neighbouring tokens and cleans up spaces."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, {"eos_token": "[SEP]", "unk_token": "[UNK]"})


def real_folder() -> Path:
    """The folder of the small real model (or the one that NORIA_MODEL_NAME names)."""
    return resolve_model_folder(load(None).model)


@cache
def real() -> Tokenizer:
    """The small real model's tokenizer."""
    return Tokenizer.load(real_folder())
