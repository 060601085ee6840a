"""The executor ends when it is told to, whatever its model runner is doing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BUSY = """
import torch
torch.set_num_threads(1)
from noria.services.executor.cpu import loading
from noria.shared.config.config import Config, RuntimeSettings

def load(settings):
    print("loading", flush=True)
    x = torch.ones(256, 256)
    while True:
        x @ x

loading.load = load
from noria.services.executor.__main__ import start
raise SystemExit(start(Config(runtime=RuntimeSettings(dir=DIR, supervised=False))))
"""


def test_sigterm_ends_it_in_order_while_a_model_is_loading(tmp_path: Path) -> None:
    script = BUSY.replace("DIR", repr(str(tmp_path)))
    tmp_path.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "loading\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "terminate called" not in errors


CUDA = """
from noria.services.executor.__main__ import start
from noria.shared.config.config import Config, ExecutorSettings, RuntimeSettings

runtime = RuntimeSettings(dir=DIR, supervised=False)
raise SystemExit(start(Config(runtime=runtime, executor=ExecutorSettings(device="cuda"))))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_cuda_without_a_gpu_ends_the_start_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    script = CUDA.replace("DIR", repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("noria executor: executor.device is cuda, but") and "--device cpu" in last
