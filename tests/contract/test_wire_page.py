"""docs/wire.md says what the protocol is."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wire_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_wire", ROOT / "docs" / "generate_wire.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PAGE.read_text() == generator.page(), "run `python docs/generate_wire.py`"
