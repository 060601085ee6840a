"""docs/wire.md says what the protocol is."""

from fakes.scripts import script


def test_the_wire_page_is_current() -> None:
    generator = script("docs/generate_wire.py")
    assert generator.PAGE.read_text() == generator.page(), "run `python docs/generate_wire.py`"
