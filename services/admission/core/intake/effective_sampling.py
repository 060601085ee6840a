"""Computes the sampling parameters of an accepted request: a seed for each choice, a length, normalized values."""

import hashlib

from msgspec import structs

from noria.proto.sampling import TEMPERATURE_MIN, Sampling


def effective_seed(seed: int) -> int:
    """Fold any 64-bit integer into 0 … 2**63 - 1, which every array type holds; a seed in that range stays itself."""
    return seed if 0 <= seed < 2**63 else _hash(seed.to_bytes(9, "little", signed=True))


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice: the request's own for the first, one derived from it for each other."""
    return seed if choice == 0 else _hash(seed.to_bytes(8, "little") + choice.to_bytes(4, "little"))


def effective_sampling(given: Sampling, seed: int, max_tokens: int, vocabulary: int) -> Sampling:
    """Fix seed and length; clamp a tiny temperature to 0.01; write `top_k` as 0 where it excludes nothing."""
    return structs.replace(
        given,
        temperature=max(given.temperature, TEMPERATURE_MIN) if given.temperature > 0.0 else 0.0,
        top_k=given.top_k if 0 < given.top_k < vocabulary else 0,
        seed=seed,
        max_tokens=max_tokens,
    )


def end_ids(given: Sampling, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The ids that end a stream, each once: its stop token ids, and end of sequence unless ignored."""
    return tuple(dict.fromkeys(given.stop_token_ids if given.ignore_eos else given.stop_token_ids + eos_ids))


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"noria-seed").digest(), "little") >> 1
