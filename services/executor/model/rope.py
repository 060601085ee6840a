"""Rotary position embedding: the inverse frequencies by which queries and keys are rotated."""

import math

import msgspec


class Rope(msgspec.Struct, frozen=True):
    """Inverse frequencies theta ** (-2i / head_dim), stretched as `kind` says (default, linear, llama3)."""

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
