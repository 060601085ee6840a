"""A model's chat template: messages become prompt ids.

Templates come with the model and are rendered in jinja2's sandbox with bounds on loops and output. What a user writes
never becomes a control token: special-token text inside messages is replaced before rendering by noncharacters that the
template passes through, and encoded as ordinary text afterwards. Knows nothing of requests.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.sandbox

from noria.proto.frontdoor import Message
from noria.shared.errors import UserError
from noria.shared.model.tokenizer import Tokenizer, read_settings

OUTPUT_CHARACTERS_MAX: Final = 16_000_000
_REPEATED_MAX: Final = 1_000_000
# Noncharacters: Unicode reserves them for use inside a program, so that no text means anything by them. Those that a
# user sends all the same are escaped like special tokens.
_OPEN: Final = "\ufdd0"
_CLOSE: Final = "\ufdd1"
_DIGITS: Final = {ord("0") + digit: 0xFDD2 + digit for digit in range(10)}
_UNDIGITS: Final = {after: before for before, after in _DIGITS.items()}
_SENTINEL: Final = re.compile(f"{_OPEN}([\ufdd2-\ufddb]+){_CLOSE}")


class TemplateError(Exception):
    """The messages cannot be rendered; the text says why, for the user."""


class ChatTemplate:
    """One model's template and tokenizer.

    source: the template, or None when the model has none. Renders from several threads.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template: jinja2.Template | None = None
        if source is not None:
            try:
                self._template = _environment().from_string(source)
            except (jinja2.TemplateError, RecursionError) as error:
                raise UserError(f"the model's chat template cannot be read: {error}") from error
        escaped = sorted({*tokenizer.special.values(), *map(chr, range(0xFDD0, 0xFDDC))} - {""}, key=len, reverse=True)
        self._escaped = re.compile("|".join(map(re.escape, escaped)))
        control = sorted(set(tokenizer.special.values()) - {""}, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, control)) + ")") if control else None

    @classmethod
    def load(cls, folder: str | Path, tokenizer: Tokenizer) -> "ChatTemplate":
        """Read a model folder's template. Raises UserError when it cannot be parsed."""
        return cls(read_source(folder), tokenizer)

    @property
    def exists(self) -> bool:
        """Whether the model has a chat template at all."""
        return self._template is not None

    def render_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt as ids, up to where the model's answer begins; only the template's own control tokens become control tokens.

        Equal to transformers' `apply_chat_template` where messages hold no special-token text. Raises TemplateError.
        """
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match[0])
            return _OPEN + str(len(hidden) - 1).translate(_DIGITS) + _CLOSE

        escaped = [
            {"role": self._escaped.sub(hide, message.role), "content": self._escaped.sub(hide, message.content)}
            for message in messages
        ]
        rendered = self._render(escaped)
        if not hidden:
            return self._tokenizer.encode(rendered, add_special_tokens=False)
        return self._encode_parts(rendered, hidden)

    def _render(self, messages: list[dict[str, str]]) -> str:
        if self._template is None:
            raise TemplateError("this model has no chat template; send a prompt instead of messages")
        if not messages:
            raise TemplateError("at least one message is needed")
        written: list[str] = []
        characters = 0
        try:
            for part in self._template.generate(
                **self._tokenizer.named,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
            ):
                characters += len(part)
                if characters > OUTPUT_CHARACTERS_MAX:
                    raise TemplateError(f"the rendered messages have more than {OUTPUT_CHARACTERS_MAX} characters")
                written.append(part)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refused the messages: {error.message}") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # Whatever the template's own expressions raise: operations on the wrong type, an index too far.
            raise TemplateError(f"the model's chat template failed: {error}") from error
        return "".join(written)

    def _encode_parts(self, rendered: str, hidden: Sequence[str]) -> list[int]:
        """Encode text between the template's control tokens plainly where it hides something, else as usual."""
        parts = self._control.split(rendered) if self._control else [rendered]
        ids: list[int] = []
        usual: list[str] = []
        for part in parts:
            if _SENTINEL.search(part) is None:
                usual.append(part)
                continue
            ids += self._tokenizer.encode("".join(usual), add_special_tokens=False)
            usual.clear()
            ids += self._tokenizer.encode_plain(_SENTINEL.sub(lambda match: _restored(match, hidden), part))
        return ids + self._tokenizer.encode("".join(usual), add_special_tokens=False)


def read_source(folder: str | Path) -> str | None:
    """A folder's chat template: `chat_template.jinja`, else the (default) one in tokenizer_config.json, else None."""
    path = Path(folder) / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}; pull the model again or choose another") from error
    declared = read_settings(folder).get("chat_template")
    if isinstance(declared, list):
        named = {entry.get("name"): entry.get("template") for entry in declared if isinstance(entry, dict)}
        declared = named.get("default")
    return declared if isinstance(declared, str) else None


def _restored(match: re.Match[str], hidden: Sequence[str]) -> str:
    index = int(match[1].translate(_UNDIGITS))
    return hidden[index] if index < len(hidden) else ""


class _TemplateSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, which bounds `range`, with a bound on repetition too."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > 64:
            raise jinja2.exceptions.SecurityError("exponent too large")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * other > _REPEATED_MAX:
                    raise jinja2.exceptions.SecurityError("repetition too long")
        return super().call_binop(context, operator, left, right)


def _environment() -> jinja2.Environment:
    environment = _TemplateSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
