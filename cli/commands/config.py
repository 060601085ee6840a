"""`noria config`: prints the effective configuration and where each option comes from."""

import click
import msgspec

from noria.cli.config_handover import render_toml
from noria.cli.flags import config_flags, settings, sources
from noria.shared.config.sources import dump, origins


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of TOML.")
@config_flags()
def config(as_json: bool) -> None:
    """Print the effective configuration.

    Comments name the source of each option that is not at its default. Every option can be set in the TOML file and by
    a variable, NORIA_SECTION_KEY; those that are changed often have a flag too.
    """
    effective = settings()
    file, flags = sources()
    found = origins(file, flags)
    if as_json:
        text = msgspec.json.format(msgspec.json.encode({"config": dump(effective), "origins": found})).decode()
        click.echo(text)
    else:
        click.echo(render_toml(effective, found), nl=False)
