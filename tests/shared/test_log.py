"""Log lines of many processes on one standard error stay lines."""

import json
import os
import subprocess
import sys

WRITER = """
import sys
from noria.shared.config.config import LogSettings
from noria.shared.telemetry.log import configure, logger
configure(LogSettings(format="json"))
for number in range(200):
    logger(sys.argv[1]).info("event", number=number)
"""


def test_lines_of_processes_that_share_a_pipe_are_never_torn() -> None:
    reader, writer = os.pipe()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    names = ("one", "two", "three")
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, name], stderr=writer, env=environment) for name in names
    ]
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = [json.loads(line) for line in pipe]
    assert [child.wait() for child in children] == [0, 0, 0]
    for name in names:
        assert [line["number"] for line in lines if line["service"] == name] == list(range(200))


def test_a_service_outlives_the_reader_of_its_log() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    child = subprocess.Popen([sys.executable, "-c", WRITER, "one"], stderr=writer)
    os.close(writer)
    assert child.wait() == 0
