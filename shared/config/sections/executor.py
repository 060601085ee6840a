"""The options of section `[executor]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags


class ExecutorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How steps are computed."""

    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Compute threads; the cores this container may use where absent.", extra=flags("--threads")),
    ] = None
    kernels: Annotated[
        Literal["auto", "reference", "portable", "avx2", "avx512", "triton"],
        Meta(
            description="What computes: kernels for these instructions, or for a GPU, or plain PyTorch; auto is the best there is.",
            extra=flags("--kernels"),
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "fp8"],
        Meta(
            description="int8: matrix products in eight-bit integers, scaled in groups of 32 inputs. fp8 is for GPUs.",
            extra=flags("--quantization"),
        ),
    ] = "none"
    device: Annotated[
        Literal["cpu", "cuda"],
        Meta(description="What computes; cuda is a GPU, of NVIDIA, or of AMD under ROCm.", extra=flags("--device")),
    ] = "cpu"
    q_padding_interval_size: Annotated[
        int,
        Meta(
            description="cuda: a step's query tokens are padded to a multiple of this, so that few graphs serve many steps.",
            extra=flags("--q-padding-interval-size"),
            ge=1,
            le=65536,
        ),
    ] = 64
    kv_padding_interval_size: Annotated[
        int,
        Meta(
            description="cuda: the cached tokens of a step's longest sequence are padded to a multiple of this.",
            extra=flags("--kv-padding-interval-size"),
            ge=1,
            le=1 << 20,
        ),
    ] = 4096
    graphs_max: Annotated[
        int,
        Meta(
            description="cuda: recorded shapes of steps that are kept; 0 computes every step operation by operation.",
            extra=flags("--graphs-max"),
            ge=0,
            le=1024,
        ),
    ] = 32
    keep_packed: Annotated[
        bool,
        Meta(
            description="Keep weights as the kernels read them in the model's folder: the next start maps them.",
            extra=flags("--keep-packed"),
        ),
    ] = True
    ranks: Annotated[
        int,
        Meta(description="Tensor-parallel ranks; only 1 today.", extra=flags("--tensor-parallel-size"), ge=1, le=1),
    ] = 1
