"""What loading a model found out, for the shell and for people. Knows neither tensors nor the device."""

import msgspec

from noria.proto.execution import Geometry
from noria.services.executor.shape import Shape
from noria.services.executor.sizing import Memory


class Loaded(msgspec.Struct, frozen=True):
    """What loading found out. steady: every matrix product gives a row the same bits in any batch.

    kernels: what computes, for a person. unkept: why packed weights could not be kept, or nothing.
    """

    shape: Shape
    geometry: Geometry
    threads: int
    memory: Memory
    load_s: float
    steady: bool
    kernels: str = ""
    unkept: str = ""
