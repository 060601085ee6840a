"""What a checkpoint's config.json says about its decoder, as one set of parameters for all Llama-shaped families.

Decides which models can be served; a family or option that is not built yet is refused by name.
"""

import math
from pathlib import Path
from typing import Final

import msgspec

from noria.shared.errors import UserError

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type` of what is served; SmolLM and SmolLM2 call themselves llama."""


class Rope(msgspec.Struct, frozen=True):
    """Rotary positions: inverse frequencies theta ** (-2i / head_dim), stretched as `kind` says (default, linear, llama3)."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original_tokens: int = 8192

    def frequencies(self, head_dim: int) -> list[float]:
        """The head_dim / 2 inverse frequencies. llama3: Llama 3.1's smooth stretch of the long wavelengths."""
        plain = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [each / self.factor for each in plain]
        return [self._stretched(each) for each in plain] if self.kind == "llama3" else plain

    def _stretched(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < self.original_tokens / self.high_factor:
            return frequency
        if wavelength > self.original_tokens / self.low_factor:
            return frequency / self.factor
        smooth = (self.original_tokens / wavelength - self.low_factor) / (self.high_factor - self.low_factor)
        return (1 - smooth) * frequency / self.factor + smooth * frequency


class Architecture(msgspec.Struct, frozen=True):
    """A decoder's parameters. tied: the head is the embedding; None when the checkpoint's tensors tell."""

    family: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope: Rope
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norm: bool
    tied: bool | None

    @property
    def query_group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.kv_heads

    def cache_bytes_per_token(self, item_bytes: int) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * item_bytes


class _RopePublished(msgspec.Struct):
    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None


class _Published(msgspec.Struct):
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool | None = None
    rope_theta: float | None = None
    rope_scaling: _RopePublished | None = None
    rope_parameters: _RopePublished | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    layer_types: list[str] | None = None


def architecture(folder: Path, max_model_tokens: int) -> Architecture:
    """Read a model folder's architecture. Raises UserError naming what cannot be served."""
    path = folder / "config.json"
    try:
        kind = msgspec.json.decode(path.read_bytes(), type=_Kind).model_type
        if kind not in FAMILIES:
            raise UserError(f"{path}: model type {kind!r} is not served yet; served are: {', '.join(FAMILIES)}")
        published = msgspec.json.decode(path.read_bytes(), type=_Published)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path} does not describe a decoder: {error}") from error
    _check(published, path, max_model_tokens)
    bias = published.attention_bias
    return Architecture(
        family=kind,
        vocabulary=published.vocab_size,
        hidden=published.hidden_size,
        intermediate=published.intermediate_size,
        layers=published.num_hidden_layers,
        heads=published.num_attention_heads,
        kv_heads=published.num_key_value_heads or published.num_attention_heads,
        head_dim=published.head_dim or published.hidden_size // published.num_attention_heads,
        epsilon=published.rms_norm_eps,
        rope=_rope(published, path),
        qkv_bias=kind == "qwen2" or (kind in ("llama", "qwen3") and bias),
        out_bias=kind in ("llama", "qwen3") and bias,
        mlp_bias=kind == "llama" and published.mlp_bias,
        head_norm=kind == "qwen3",
        tied=published.tie_word_embeddings,
    )


class _Kind(msgspec.Struct):
    model_type: str = "unknown"


def _check(published: _Published, path: Path, max_model_tokens: int) -> None:
    if published.hidden_act != "silu":
        raise UserError(f"{path}: activation {published.hidden_act!r} is not served yet; served is: silu")
    sliding = (
        "sliding_attention" in published.layer_types
        if published.layer_types is not None
        else published.model_type == "mistral" or published.use_sliding_window
    )
    window = published.sliding_window
    if sliding and window is not None and window < max_model_tokens:
        raise UserError(
            f"{path}: attention looks back {window} tokens only, which is not served yet; "
            f"serve contexts that it covers whole with --max-model-tokens {window}"
        )


def _rope(published: _Published, path: Path) -> Rope:
    given = published.rope_parameters or published.rope_scaling or _RopePublished()
    kind = given.rope_type or given.type or "default"
    if kind not in ("default", "linear", "llama3"):
        raise UserError(f"{path}: rotary positions of kind {kind!r} are not served yet")
    return Rope(
        theta=given.rope_theta or published.rope_theta or 10000.0,
        kind=kind,
        factor=given.factor,
        low_factor=given.low_freq_factor,
        high_factor=given.high_freq_factor,
        original_tokens=given.original_max_position_embeddings or published.max_position_embeddings,
    )
