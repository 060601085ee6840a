"""Models for the numeric tests: the small real one where it has been pulled, and transformers' answers to compare with."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from executor.numerics.comparison import LENGTHS, TEXT, Reference, decoder_of

from noria.services.executor.model.decoder import Decoder
from noria.shared.config.sources import load
from noria.shared.errors import UserError
from noria.shared.model.model_folder import resolve_model_folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: for small models a second one mostly spins, worst of all where others compute too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_folder() -> Path:
    settings = msgspec.structs.replace(load(None).model, dtype="auto")
    try:
        return resolve_model_folder(settings)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def prompts(real_folder: Path) -> list[tuple[int, ...]]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(real_folder / "tokenizer.json")).encode(TEXT * 20).ids
    return [tuple(ids[7 * i : 7 * i + length]) for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="session")
def expected(real_folder: Path, prompts: list[tuple[int, ...]]) -> Reference:
    return Reference(real_folder, prompts)


@pytest.fixture(scope="session")
def float32(real_folder: Path) -> Decoder:
    return decoder_of(real_folder, torch.float32)


@pytest.fixture(scope="session")
def bfloat16(real_folder: Path) -> Decoder:
    return decoder_of(real_folder, torch.bfloat16)
