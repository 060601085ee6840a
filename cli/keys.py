"""`noria keys new`: an API key for a tenant, and the hash of it that goes into the configuration file."""

import hashlib
import re
import secrets
from typing import Final

import click
import msgspec

from noria.shared.errors import UserError
from noria.shared.traffic import KEY_PREFIX, TENANT_NAME

_KEY_BYTES: Final = 32


@click.group()
def keys() -> None:
    """Make keys."""


@keys.command()
@click.argument("tenant")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new(tenant: str, as_json: bool) -> None:
    """Draw an API key for TENANT and print it with its hash.

    The key is shown this once and kept nowhere; the hash goes into the configuration file, which SIGHUP reads again.
    """
    if re.fullmatch(TENANT_NAME, tenant) is None:
        raise UserError(f"{tenant!r} is no name for a tenant: it must match {TENANT_NAME}")
    key = f"noria-{secrets.token_urlsafe(_KEY_BYTES)}"
    digest = hash_of(key)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"tenant": tenant, "key": key, "hash": digest})))
        return
    click.echo(f"API key   {key}\nhash      {digest}\n")
    click.echo("The key is not kept anywhere: give it to the tenant now. For the configuration file:\n")
    name = f'"{tenant}"' if "." in tenant else tenant
    click.echo(f'[tenants.{name}]\nkeys = ["{digest}"]')


def hash_of(key: str) -> str:
    """How the configuration file names a key."""
    return f"{KEY_PREFIX}{hashlib.sha256(key.encode()).hexdigest()}"
