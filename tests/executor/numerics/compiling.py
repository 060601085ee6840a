"""Compiles every Triton kernel for a GPU that need not be there. Run as a program: the interpreter must be off.

python -m numerics.compiling cuda:90 hip:gfx942 [--once]
"""

import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
warnings.filterwarnings("ignore")

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from noria.services.executor.cuda.triton import (  # noqa: E402
    attention_kernels,
    elementwise_kernels,
    head_kernels,
    penalty_kernels,
    sampling_kernels,
)

Constants = Mapping[str, object]
POINTERS: dict[str, str] = {
    **dict.fromkeys(("weights", "parts", "rotations", "residual", "logits", "scales", "leasts"), "*fp32"),
    **dict.fromkeys(("repetitions", "frequencies", "presences", "shares", "top_shares"), "*fp32"),
    **dict.fromkeys(("table", "work", "starts", "rows", "lengths", "joins", "singles", "positions"), "*i32"),
    **dict.fromkeys(("token_ids", "carry", "last_tokens", "recent", "ids", "slots", "top_ks", "wanted"), "*i32"),
    **dict.fromkeys(("top_ids", "counted", "counts"), "*i32"),
    **dict.fromkeys(("write_slots", "seeds"), "*i64"),
    **dict.fromkeys(("scale", "cap", "epsilon", "limit"), "fp32"),
    **dict.fromkeys(("pitch", "width"), "i32"),
    "top_ps": "*fp64",
    "seen": "*i8",
}


def kernels() -> Iterator[tuple[Any, dict[str, str], dict[str, object]]]:
    """(kernel, types of its pointers that differ, constants), in the shapes of an 8B Llama and of others."""
    for dtype, store in (("fp16", "i8"), ("bf16", "bf16"), ("bf16", "fp8e4nv"), ("fp32", "fp32")):
        quantised = store == "i8"
        model = dict.fromkeys(("queries", "out", "x", "qkv", "query_norm", "key_norm", "weight", "table"), f"*{dtype}")
        scales = f"*{'i16' if quantised else store}"
        cache = {"keys": f"*{store}", "values": f"*{store}", "key_scales": scales, "value_scales": scales}
        sizes = {"GROUP": 4, "KV_HEADS": 8, "HEAD_DIM": 128, "PAGE_SIZE": 16, "BLOCK_D": 128, "QUANTISED": quantised}
        sizes["PAGE_STRIDE"] = 16 * 8 * 128 + (16 * 8 * 2 if quantised else 0)
        if quantised:
            sizes |= {"HEAD_DIM": 96, "PAGE_STRIDE": 16 * 8 * 96 + 16 * 8 * 2}
        window = {"RING": 40 * quantised, "WINDOW": 300 * quantised, "CAPPED": quantised}
        for split, rows in ((256, 16), (0, 64)):
            types = {**model, **cache, "table": "*i32"} | ({"out": "*fp32"} if split else {})
            yield attention_kernels.attend, types, {**sizes, **window, "SPLIT": split, "BLOCK_M": rows, "BLOCK_N": 64}
        rotated = {"NORMED": quantised, "ROTATED": True, "ROWS": 8}
        yield head_kernels.rotate_write, {**model, **cache}, {**sizes, **rotated}
    bf16 = dict.fromkeys(("x", "out", "weight", "table"), "*bf16")
    yield attention_kernels.join, bf16, {"HEADS": 32, "HEAD_DIM": 128, "BLOCK_D": 128}
    yield elementwise_kernels.embed, {**bf16, "out": "*fp32"}, {"WIDTH": 4096, "SCALED": True, "BLOCK": 1024}
    flags = {"ADDS": True, "KEEPS": True, "PICKS": True}
    yield elementwise_kernels.add_norm, bf16, {"WIDTH": 4096, "BLOCK": 4096, **flags}
    for gelu in (False, True):
        yield elementwise_kernels.gate, bf16, {"WIDTH": 14336, "GELU": gelu, "BLOCK": 1024}
    sizes = {"VOCABULARY": 128256, "BLOCK": 4096}
    yield sampling_kernels.choose, {"positions": "*i64"}, {**sizes, "RECENT": 8}
    yield sampling_kernels.write_logprobs, {}, sizes
    yield penalty_kernels.penalise, {}, sizes


def compile_all(target: GPUTarget, *, once: bool) -> int:
    """Compile all kernels, each in one shape alone where `once`; returns how many there were."""
    compiled: list[object] = []
    for kernel, types, constants in kernels():
        if once and kernel in compiled:
            continue
        compiled.append(kernel)
        names = list(inspect.signature(kernel.fn).parameters)
        signature = {name: "constexpr" if name in constants else types.get(name, POINTERS.get(name)) for name in names}
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
        )
        built = triton.compile(source, target=target, options={"num_warps": 4})
        assert built.metadata.shared <= 160 << 10, (kernel, built.metadata.shared)
    return len(compiled)


if __name__ == "__main__":
    once = "--once" in sys.argv
    for each in (target for target in sys.argv[1:] if target != "--once"):
        backend, _, architecture = each.partition(":")
        goal = GPUTarget("cuda", int(architecture), 32) if backend == "cuda" else GPUTarget("hip", architecture, 64)
        print(each, compile_all(goal, once=once))
