"""`noria keys`: makes API keys for tenants, and CURVE key pairs for services and clients over tcp."""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Final

import click
import msgspec

from noria.shared.config.tenants import KEY_PREFIX, TENANT_NAME
from noria.shared.errors import UserError

_KEY_BYTES: Final = 32


@click.group()
def keys() -> None:
    """Create API keys for tenants, and key pairs for tcp."""


@keys.command()
@click.argument("tenant")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new(tenant: str, as_json: bool) -> None:
    """Create an API key for TENANT and print it with its hash.

    The key is printed only once and stored nowhere; the hash goes into the configuration file, which is read again at SIGHUP.
    """
    if re.fullmatch(TENANT_NAME, tenant) is None:
        raise UserError(f"{tenant!r} is not a valid tenant name: it must match {TENANT_NAME}")
    key = f"noria-{secrets.token_urlsafe(_KEY_BYTES)}"
    digest = hash_key(key)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"tenant": tenant, "key": key, "hash": digest})))
        return
    click.echo(f"API key   {key}\nhash      {digest}\n")
    click.echo("The key is not kept anywhere: give it to the tenant now. For the configuration file:\n")
    name = f'"{tenant}"' if "." in tenant else tenant
    click.echo(f'[tenants.{name}]\nkeys = ["{digest}"]')


@keys.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def curve(folder: Path) -> None:
    """Create the key pairs of all services in FOLDER, for tcp; existing ones are kept.

    Every machine needs all .key files; of the .key_secret files only those of the services that run on it.
    """
    from noria.shared.actor.curve import OWNERS, make_key_pairs

    made = make_key_pairs(folder, OWNERS)
    what = f"made the keys of {', '.join(made)}" if made else "every key was there already"
    click.echo(f"{what} in {folder}\nto use them: --transport tcp --curve-dir {folder}")


@keys.command()
@click.argument("name")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def client(name: str, folder: Path) -> None:
    """Create a key pair for the client NAME in FOLDER/clients, where FOLDER is that of `noria keys curve`.

    Once admission has restarted, only clients with a key there may connect to the public mailbox over tcp.
    """
    from noria.shared.actor.curve import CLIENTS, make_key_pairs

    if re.fullmatch(TENANT_NAME, name) is None:
        raise UserError(f"{name!r} is not a valid client name: it must match {TENANT_NAME}")
    if not make_key_pairs(folder / CLIENTS, (name,)):
        raise UserError(f"there is a key of {name} in {folder / CLIENTS} already; remove it first to replace it")
    click.echo(
        f"give {folder / CLIENTS / name}.key_secret and {folder / 'public.key'} to the client, then remove the former"
    )


def hash_key(key: str) -> str:
    """Return the hash of an API key as the configuration file holds it."""
    return f"{KEY_PREFIX}{hashlib.sha256(key.encode()).hexdigest()}"
