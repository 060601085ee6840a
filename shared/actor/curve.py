"""CURVE keys for sockets over tcp: key files, their owners, and how a socket is given its keys.

Each service has a pair of its own, so has the public mailbox (`public`) and whoever asks on behalf of people (`tools`).
A folder holds NAME.key, which anybody may know, and NAME.key_secret, which only its owner may read; both have the form
of ZeroMQ's certificates. clients/*.key, where there are any, are the only clients that the public mailbox admits.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import zmq
from zmq.auth import load_certificate

from noria.proto.base import Service
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError

PUBLIC: Final = "public"
TOOLS: Final = "tools"
CLIENTS: Final = "clients"
OWNERS: Final = (*(service.value for service in Service), PUBLIC, TOOLS)
_KEY: Final = ".key"
_SECRET: Final = ".key_secret"  # noqa: S105  # the ending of a file's name
_HINT: Final = "make the missing ones with `noria keys curve FOLDER`"


class CurveKeyPair(msgspec.Struct, frozen=True):
    """A key pair, in ZeroMQ's Z85 text. Its secret half is not shown."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> "CurveKeyPair":
        """Generate a new key pair."""
        return cls(*zmq.curve_keypair())

    def __repr__(self) -> str:
        return f"CurveKeyPair({self.public.decode()})"


class Curve(msgspec.Struct, frozen=True):
    """What the connecting end of a socket needs: the other end's public key and a pair of its own."""

    server: bytes
    own: CurveKeyPair

    @classmethod
    def load(cls, server: str | os.PathLike[str], own: str | os.PathLike[str] | None = None) -> "Curve":
        """Read the server's key from a .key file and one's own from a .key_secret file, or draw one's own.

        Raises UserError.
        """
        return cls(
            _read_public_key(Path(server)), _read_key_pair(Path(own)) if own is not None else CurveKeyPair.generate()
        )

    def equip(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the keys on a socket that is not connected yet."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret)


class CurveKeys:
    """The keys in one folder. Each is read when it is asked for; UserError says what is missing and what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key_pair(self, owner: str) -> CurveKeyPair:
        """Read an owner's key pair. Raises UserError when it is missing or can be read by others."""
        return _read_key_pair(self.folder / f"{owner}{_SECRET}")

    def curve_to(self, owner: str, own: str) -> Curve:
        """The keys with which `own` connects to `owner`'s mailbox."""
        return Curve(_read_public_key(self.folder / f"{owner}{_KEY}"), self.key_pair(own))

    def internal_keys(self) -> Mapping[bytes, str]:
        """The names of all owners that may write to internal mailboxes, by public key."""
        return {
            _read_public_key(path): owner
            for owner in OWNERS
            if owner != PUBLIC and (path := self.folder / f"{owner}{_KEY}").exists()
        }

    def client_keys(self) -> Mapping[bytes, str] | None:
        """Names of the clients that the public mailbox admits, by public key; None for everybody."""
        files = sorted((self.folder / CLIENTS).glob(f"*{_KEY}"))
        if not files:
            return None
        internal_keys = {key: name for key, name in self.internal_keys().items() if name in (Service.GATEWAY, TOOLS)}
        return {**{_read_public_key(path): path.name.removesuffix(_KEY) for path in files}, **internal_keys}

    def tools_owner(self) -> str:
        """The owner whose secret key a command of the user may use: `tools`, else the first service whose key can be read.

        Raises UserError when there is none.
        """
        for owner in (TOOLS, *OWNERS):
            if owner != PUBLIC and os.access(self.folder / f"{owner}{_SECRET}", os.R_OK):
                return owner
        raise UserError(f"{self.folder} holds no secret key that can be read; {_HINT}")


def configured_curve_keys(settings: RuntimeSettings) -> CurveKeys | None:
    """The keys in use: None with ipc, and with tcp where none are configured."""
    if settings.transport != "tcp" or not settings.curve_dir:
        return None
    return CurveKeys(Path(settings.curve_dir).expanduser().absolute())


def make_key_pairs(folder: Path, names: Iterator[str] | tuple[str, ...]) -> list[str]:
    """Draw the pairs that a folder lacks; returns their names. Raises UserError when it cannot be written.

    A pair of which either file is there is left alone.
    """
    made = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in names:
            files = [folder / f"{name}{ending}" for ending in (_KEY, _SECRET)]
            if any(file.exists() for file in files):
                continue
            pair = CurveKeyPair.generate()
            _write_certificate(files[0], pair.public, None)
            _write_certificate(files[1], pair.public, pair.secret)
            made.append(name)
    except OSError as error:
        raise UserError(f"cannot write keys into {folder}: {error.strerror}") from error
    return made


def _write_certificate(file: Path, public: bytes, secret: bytes | None) -> None:
    text = f'metadata\ncurve\n    public-key = "{public.decode()}"\n'
    text += f'    secret-key = "{secret.decode()}"\n' if secret is not None else ""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)


def _read_public_key(file: Path) -> bytes:
    return _read_certificate(file)[0]


def _read_key_pair(file: Path) -> CurveKeyPair:
    public, secret = _read_certificate(file)
    if secret is None:
        raise UserError(f"{file} holds no secret key; name the file that ends in {_SECRET}")
    if file.stat().st_mode & 0o077:
        raise UserError(f"the secret key {file} can be read by others; chmod 600 it")
    return CurveKeyPair(public, secret)


def _read_certificate(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = load_certificate(file)
    except OSError as error:
        raise UserError(f"cannot read the key {file}; {_HINT}") from error
    except ValueError as error:
        raise UserError(f"{file} is not a key in the form of ZeroMQ's certificates") from error
    for key in (public, secret or public):
        if len(key) != 40:
            raise UserError(f"{file} holds a key of {len(key)} characters instead of 40")
    return public, secret
