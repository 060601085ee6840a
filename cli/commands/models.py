"""`noria models pull` and `noria models list`."""

import click

from noria.cli.flags import config_flags, settings


@click.group()
def models() -> None:
    """Fetch models, and list fetched ones."""


@models.command()
@click.argument("name", required=False)
@config_flags("model")
def pull(name: str | None) -> None:
    """Fetch a model into the cache: an alias, a GGUF file or a hub id; without a NAME the configured one."""
    from noria.cli.model_files.fetch import pull as fetch
    from noria.cli.model_files.progress import progress_bar

    model = settings().model
    with progress_bar() as report:
        folder = fetch(name or model.name, model, report)
    click.echo(folder)


@models.command(name="list")
@config_flags("model")
def list_() -> None:
    """List aliases and pulled models."""
    from noria.cli.model_files.fetch import list_models

    found = list_models(settings().model)
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        size = f"{each.size_bytes / 1e6:8.0f} MB" if each.path else "not pulled "
        click.echo(f"{each.name:<{width}}  {size}  {each.path or each.about}")
