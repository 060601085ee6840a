"""What llama.cpp's Q8_0 costs a model, beside Noria's bfloat16 and int8: `python benchmarks/peers/quality.py [--text FILE]`.

The text, windows and predictions are those of benchmarks/int8_quality.py, whose float32 model in plain PyTorch is the
standard for both; so the lines can be compared. install.py must have built llama.cpp.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import torch
from engines import DEFAULT_FOLDER, Place

sys.path.append(str(Path(__file__).resolve().parent.parent))
from cache_dtypes import SEQUENCE
from int8_quality import Scores, engine_of, prose, scores
from tokenizers import Tokenizer

from noria.services.executor.cpu.native.library import open_kernels

_PREDICTION: Final = np.dtype([("likeliest", np.int32), ("likelihood", np.float64)])


def main() -> None:
    """Print a line for each way to compute."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where install.py put the peers")
    parser.add_argument("--model", type=Path, default=Path("~/.cache/noria/models/smollm2"), help="Hugging Face folder")
    parser.add_argument("--text", type=Path, help="read this instead")
    parser.add_argument("--ours", action=argparse.BooleanOptionalAction, default=True, help="measure Noria's own too")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    place = Place(options.folder.expanduser().resolve(), options.model.expanduser().resolve(), threads)
    text = options.text.read_text() if options.text else prose()
    ids = Tokenizer.from_file(str(place.model / "tokenizer.json")).encode(text).ids
    windows = [ids[start : start + SEQUENCE] for start in range(0, len(ids) - SEQUENCE + 1, SEQUENCE)]
    print(
        f"{place.model.name}: {len(windows) * (SEQUENCE - 1)} predictions in windows of {SEQUENCE} tokens", flush=True
    )
    torch.set_num_threads(threads)
    exact = scores(engine_of(place.model, torch.float32, None, "none", threads), windows)
    print_line("float32, plain PyTorch", exact, exact)
    for kind in ("bf16", "q8_0"):
        print_line(f"llama.cpp {kind.upper()}", llama_scores(place, kind, windows), exact)
    if options.ours:
        kernels = open_kernels()
        for name, quantization in (("Noria bfloat16", "none"), ("Noria int8", "int8")):
            engine = engine_of(place.model, torch.bfloat16, kernels, quantization, threads)
            print_line(name, scores(engine, windows), exact)


def print_line(name: str, found: Scores, exact: Scores) -> None:
    """Print one line of scores. NLL is the mean negative log-likelihood of the next token."""
    more = exact.likelihood - found.likelihood
    mean, standard = -float(found.likelihood.mean()), -float(exact.likelihood.mean())
    error = float(more.std()) / math.sqrt(len(more))
    same = float((found.likeliest == exact.likeliest).double().mean())
    print(
        f"{name:24} NLL {mean:.5f} ({float(more.mean()) / standard:+.3%} +- {error / standard:.3%} of float32's), "
        f"float32's likeliest token {same:7.2%}",
        flush=True,
    )


def llama_scores(place: Place, kind: str, windows: list[list[int]]) -> Scores:
    """Compute the scores with llama.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder) / "ids", Path(folder) / "out"
        np.array(windows, np.int32).tofile(ids)
        model = place.converted("llama.cpp", kind)
        command = [built(place), model, ids, str(SEQUENCE), str(place.threads), out]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        found = np.fromfile(out, _PREDICTION)
    assert len(found) == len(windows) * (SEQUENCE - 1)
    return Scores(torch.from_numpy(found["likeliest"].astype(np.int64)), torch.from_numpy(found["likelihood"].copy()))


def built(place: Place) -> Path:
    """llama_scores, compiled against the libraries that install.py built."""
    root = place.folder / "llama.cpp"
    program, code = root / "llama_scores", Path(__file__).with_name("llama_scores.cpp")
    if program.exists() and program.stat().st_mtime >= code.stat().st_mtime:
        return program
    build = root / "build"
    libraries = [
        build / "src" / "libllama.a",
        *(build / "ggml" / "src" / f"libggml{part}.a" for part in ("", "-cpu", "-base")),
    ]
    includes = [f"-I{root / 'source' / part}" for part in ("include", "ggml/include")]
    command = ["c++", "-std=c++17", "-O2", *includes, code, "-o", program, *libraries, "-fopenmp", "-lpthread", "-ldl"]
    subprocess.run(command, check=True)
    return program


if __name__ == "__main__":
    main()
