"""docs/wire.md says what the protocol is, and docs/sampling.md what the sampling parameters are."""

from fakes.scripts import script


def test_the_wire_page_is_current() -> None:
    generator = script("docs/generate_wire.py")
    assert generator.PAGE.read_text() == generator.page(), "run `python docs/generate_wire.py`"


def test_the_page_of_sampling_parameters_is_current() -> None:
    generator = script("docs/generate_sampling.py")
    assert generator.PAGE.read_text() == generator.page(), "run `python docs/generate_sampling.py`"
