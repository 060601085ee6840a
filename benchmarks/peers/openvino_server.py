"""OpenVINO GenAI's continuous batching behind a small OpenAI-compatible server. Runs in the peer's own environment.

It serves /v1/models and streamed /v1/completions, with text made by the `tokenizers` library, which is cheapest. It does
as little as it can: OpenVINO is what is to be measured.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import openvino
import openvino_genai
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

TURNS = 6  # of the loop between two steps: enough to read a request's head and body and start it


@dataclass(eq=False)
class PendingRequest:
    """One request; `on_text` receives (text, tokens so far, whether it has ended)."""

    ids: list[int]
    config: openvino_genai.GenerationConfig
    on_text: asyncio.Queue = field(default_factory=asyncio.Queue)
    handle: object = None
    tokens: int = 0
    decoder: DecodeStream = field(default_factory=lambda: DecodeStream(skip_special_tokens=True))


class Stepper:
    """Adds waiting requests, runs steps, and passes on new text.

    OpenVINO's step holds Python's lock, so a thread of its own would starve the loop: the loop itself steps, and serves
    its sockets between two steps.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options.cache_gib
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_seqs = options.max_num_seqs
        scheduler.max_num_batched_tokens = options.max_num_batched_tokens
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "INFERENCE_NUM_THREADS": options.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            options.model, scheduler, "CPU", properties=properties, tokenizer_properties={}
        )
        self.tokenizer = Tokenizer.from_file(str(Path(options.model) / "tokenizer.json"))
        self.waiting: asyncio.Queue[PendingRequest] = asyncio.Queue()

    async def run(self) -> None:
        """Run steps forever."""
        running: list[PendingRequest] = []
        number = 0
        while True:
            while not running or not self.waiting.empty():
                call = await self.waiting.get()
                tensor = openvino.Tensor(numpy.array([call.ids], numpy.int64))
                call.handle = self.pipeline.add_request(number, tensor, call.config)
                number += 1
                running.append(call)
            self.pipeline.step()
            for call in running:
                self._read(call)
            running = [call for call in running if call.tokens < call.config.max_new_tokens]
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def _read(self, call: PendingRequest) -> None:
        while call.handle.can_read():
            for output in call.handle.read().values():
                texts = (call.decoder.step(self.tokenizer, token) for token in output.generated_ids)
                text = "".join(each for each in texts if each)
                call.tokens += len(output.generated_ids)
                call.on_text.put_nowait((text, call.tokens, call.tokens >= call.config.max_new_tokens))


class Server:
    """An HTTP/1.1 server with kept connections and server-sent events."""

    def __init__(self, stepper: Stepper, name: str) -> None:
        self.stepper = stepper
        self.name = name

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it closes."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if lines[0].startswith("GET"):
                    text = json.dumps({"object": "list", "data": [{"id": self.name, "object": "model"}]}).encode()
                    writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
                else:
                    await self._complete(json.loads(body), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _complete(self, body: dict, writer: asyncio.StreamWriter) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = body["max_tokens"]
        config.ignore_eos = bool(body.get("ignore_eos"))
        config.do_sample = body.get("temperature", 0) > 0
        call = PendingRequest(self.stepper.tokenizer.encode(body["prompt"]).ids, config)
        self.stepper.waiting.put_nowait(call)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        ended = False
        while not ended:
            text, tokens, ended = await call.on_text.get()
            finish = "length" if ended else None
            choice = {"index": 0, "text": text, "finish_reason": None}
            _event(writer, {"object": "text_completion", "model": self.name, "choices": [choice]})
            if ended:
                _event(writer, {"choices": [{"index": 0, "text": "", "finish_reason": finish}]})
                prompt = len(call.ids)
                usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
                _event(writer, {"choices": [], "usage": usage})
                _chunk(writer, b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
            await writer.drain()


def _event(writer: asyncio.StreamWriter, content: dict) -> None:
    _chunk(writer, f"data: {json.dumps(content)}\n\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def main() -> None:
    """Load, then serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=256)
    parser.add_argument("--cache-gib", type=int, default=2)
    options = parser.parse_args()
    stepper = Stepper(options)
    server = await asyncio.start_server(Server(stepper, Path(options.model).name).connected, "127.0.0.1", options.port)
    await asyncio.gather(server.serve_forever(), stepper.run())


if __name__ == "__main__":
    asyncio.run(main())
