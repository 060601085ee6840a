"""`noria generate`: streams the answer to one prompt to the terminal."""

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from noria.cli.commands.generation_flags import (
    generation_options,
    open_client,
    print_failure,
    sampling_flags,
    stream_to_terminal,
)
from noria.cli.flags import config_flags, settings
from noria.shared.config.config import RuntimeSettings

if TYPE_CHECKING:
    from noria.client import Client, Completion, Logprobs
    from noria.client.generate_request import Options


@click.command()
@click.argument("prompt")
@click.option("--system", default="", help="System prompt, for models with a chat template.")
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text instead of answering it as a chat turn.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON when it is complete.")
@sampling_flags
@config_flags("runtime")
def generate(prompt: str, system: str, raw: bool, as_json: bool) -> int:
    """Stream the answer to one PROMPT; - reads the prompt from standard input."""
    text = sys.stdin.read() if prompt == "-" else prompt
    return print_answer(settings().runtime, text, system=system, raw=raw, as_json=as_json, options=generation_options())


def print_answer(
    runtime: RuntimeSettings, prompt: str, *, system: str, raw: bool, as_json: bool, options: "Options"
) -> int:
    """Ask for one answer and print it; returns the exit status. Raises UserError when no stack answers or it refuses."""
    with open_client(runtime) as client:
        as_text = raw or not client.describe().has_chat_template
        messages = None if as_text else _messages(system, prompt)
        text = prompt if as_text else None
        if as_json:
            return _print_json(client, text, messages, options)
        with client.generate(text, messages=messages, **options) as generation:
            _, finish = stream_to_terminal(generation)
    return print_failure(finish)


def _print_json(client: "Client", text: str | None, messages: list[dict[str, str]] | None, options: "Options") -> int:
    completion = client.complete(text, messages=messages, **options)
    click.echo(msgspec.json.format(msgspec.json.encode(_completion_json(completion))).decode())
    return print_failure(completion.choices[0].finish)


def _completion_json(completion: "Completion") -> dict[str, object]:
    choice = completion.choices[0]
    return {
        "id": completion.id,
        "model": completion.accepted.model if completion.accepted else "",
        "seed": completion.accepted.seed if completion.accepted else None,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "matched": choice.matched,
        **({"logprobs": [_logprobs_json(each) for each in choice.logprobs]} if choice.logprobs else {}),
        "usage": completion.usage,
        "timings": msgspec.structs.asdict(choice.timings),
    }


def _logprobs_json(entry: "Logprobs") -> dict[str, object]:
    top = [{"id": each.id, "token": each.token.decode(errors="replace"), "logprob": each.logprob} for each in entry.top]
    return {"token": entry.token.decode(errors="replace"), "logprob": entry.logprob, "top": top}


def _messages(system: str, prompt: str) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": prompt}]
