"""The engines that are compared, each with the settings known to serve it best on a CPU, and where its parts lie.

Every engine serves the same weights on the same number of threads through an OpenAI-compatible HTTP server.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
DEFAULT_FOLDER: Final = Path("~/.cache/noria/peers").expanduser()
CONTEXT: Final = 2048
SLOTS: Final = 32
# The workloads' longest request, prompt and answer, in tokens, with room for a tokenizer that counts a little differently.
REQUEST_TOKENS_MAX: Final = 1280


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are. folder: the peers' installs. model: an ordinary Hugging Face folder."""

    folder: Path
    model: Path
    threads: int

    def python(self, peer: str) -> Path:
        """The interpreter of a peer's own environment."""
        return self.folder / peer / "bin" / "python"

    @property
    def llama_server(self) -> Path:
        """llama.cpp's server."""
        return self.folder / "llama.cpp" / "build" / "bin" / "llama-server"

    def converted(self, peer: str, kind: str) -> Path:
        """The model as a peer wants it: a GGUF file or an OpenVINO folder."""
        name = f"{self.model.name}-{kind}"
        return self.folder / peer / "models" / (f"{name}.gguf" if peer == "llama.cpp" else name)


@dataclass(frozen=True, slots=True)
class Start:
    """How a server is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine in one precision. kind: bf16 or int8. settings: what is not default, and why, for the report."""

    name: str
    kind: str
    ours: bool
    settings: str
    start: Callable[[Place, int], Start]
    needs: Callable[[Place], Path]


def _noria(*more: str) -> Callable[[Place, int], Start]:
    def start(place: Place, port: int) -> Start:
        command = (
            str(Path(sys.executable).with_name("noria")), "up", "--model", str(place.model),
            "--http", f"127.0.0.1:{port}", "--dtype", "bfloat16", "--threads", str(place.threads),
            "--max-model-tokens", str(CONTEXT), "--log-level", "warning", *more,
        )  # fmt: skip
        return Start(command)

    return start


def _vllm(place: Place, port: int) -> Start:
    command = (
        str(place.python("vllm")), "-m", "vllm.entrypoints.cli.main", "serve", str(place.model),
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", str(CONTEXT),
        "--max-num-seqs", str(2 * SLOTS), "--disable-log-stats",
    )  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))[: place.threads]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(str(each) for each in vllm_preloads(place)),
    }
    return Start(command, environment)


def vllm_preloads(place: Place) -> list[Path]:
    """Intel's OpenMP from vLLM's own environment, and tcmalloc where the system has it: vLLM asks for both."""
    found = [place.folder / "vllm" / "lib" / "libiomp5.so"]
    for folder in ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"):
        found += sorted(Path(folder).glob("libtcmalloc_minimal.so.*"))[:1]
    return [each for each in found[:2] if each.exists()]


def _llama(kind: str) -> Callable[[Place, int], Start]:
    def start(place: Place, port: int) -> Start:
        command = (
            str(place.llama_server), "--model", str(place.converted("llama.cpp", kind)),
            "--host", "127.0.0.1", "--port", str(port), "--threads", str(place.threads),
            "--threads-batch", str(place.threads), "--parallel", str(SLOTS),
            "--ctx-size", str(SLOTS * REQUEST_TOKENS_MAX), "--batch-size", "2048", "--ubatch-size", "512",
        )  # fmt: skip
        return Start(command)

    return start


def _openvino(kind: str) -> Callable[[Place, int], Start]:
    def start(place: Place, port: int) -> Start:
        command = (
            str(place.python("openvino")), str(HERE / "openvino_server.py"),
            "--model", str(place.converted("openvino", kind)), "--port", str(port), "--threads", str(place.threads),
            "--max-num-seqs", str(2 * SLOTS),
        )  # fmt: skip
        return Start(command)

    return start


_LLAMA = (
    "built for this processor (GGML_NATIVE); 32 slots, one shared context of 32 requests of 1,280 tokens, logical batches of "
    "2,048 and physical ones of 512 tokens, threads = cores"
)
_OPENVINO = (
    "continuous batching of OpenVINO GenAI behind a small server of ours (asyncio, one process): prefix caching, split prompts, "
    "bfloat16 inference, cache precision its own default (u8)"
)

ENGINES: Final = (
    Engine(
        "openvino-bf16",
        "bf16",
        False,
        _OPENVINO,
        _openvino("fp16"),
        lambda place: place.converted("openvino", "fp16") / "openvino_model.xml",
    ),
    Engine(
        "noria-bf16", "bf16", True, "as installed; dtype bfloat16", _noria(), lambda place: place.model / "config.json"
    ),
    Engine(
        "vllm-bf16",
        "bf16",
        False,
        "libiomp5 and tcmalloc preloaded, threads bound to the cores, 3 GiB of cache, compiled (no eager mode), 64 sequences",
        _vllm,
        lambda place: place.python("vllm"),
    ),
    Engine("llama.cpp-bf16", "bf16", False, _LLAMA, _llama("bf16"), lambda place: place.converted("llama.cpp", "bf16")),
    Engine(
        "openvino-int8",
        "int8",
        False,
        f"{_OPENVINO}; weights int8 per channel, activations quantized by OpenVINO as it likes",
        _openvino("int8"),
        lambda place: place.converted("openvino", "int8") / "openvino_model.xml",
    ),
    Engine(
        "noria-int8",
        "int8",
        True,
        "as installed; quantization int8",
        _noria("--quantization", "int8"),
        lambda place: place.model / "config.json",
    ),
    Engine("llama.cpp-q8_0", "int8", False, _LLAMA, _llama("q8_0"), lambda place: place.converted("llama.cpp", "q8_0")),
)
