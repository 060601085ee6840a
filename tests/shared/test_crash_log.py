"""What a dying process leaves for its supervisor to quote."""

import subprocess
import sys
from pathlib import Path

import pytest

from noria.shared.process.crash_log import crash_log_path


@pytest.mark.parametrize(
    ("dying", "expected"),
    [
        ("raise RuntimeError('out of luck')", "RuntimeError: out of luck"),
        ("import faulthandler; faulthandler._sigsegv()", "Fatal Python error: Segmentation fault"),
        ("raise SystemExit(3)", ""),
    ],
)
def test_an_exception_and_a_fatal_signal_are_written_down_and_an_orderly_end_is_not(
    tmp_path: Path, dying: str, expected: str
) -> None:
    begin = "from pathlib import Path; from noria.shared.process.crash_log import log_crashes"
    code = f"{begin}\nlog_crashes(Path({str(tmp_path)!r}), 'x')\n{dying}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    written = crash_log_path(tmp_path, "x").read_text()
    assert expected in written
    assert bool(written) == bool(expected)
    if "luck" in dying:
        assert expected in done.stderr, "people read it too"


def test_a_folder_that_cannot_be_written_costs_the_words_and_not_the_service(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from noria.shared.process.crash_log import log_crashes\nlog_crashes(Path('{tmp_path}/no'), 'x')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
