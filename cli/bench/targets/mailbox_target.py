"""A benchmark target that asks a Noria stack through the client library instead of HTTP."""

import time

from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.workload import BenchRequest
from noria.client import AsyncClient, ClientError, Curve, Unreachable
from noria.shared.errors import UserError


class MailboxTarget:
    """A Noria stack behind one ZeroMQ socket."""

    def __init__(
        self, endpoint: str, curve: Curve | None = None, *, temperature: float, ignore_eos: bool, chat: bool
    ) -> None:
        self._client = AsyncClient(endpoint, curve=curve)
        self._temperature = temperature
        self._ignore_eos = ignore_eos
        self._chat = chat

    async def describe(self) -> str:
        """Return the served model's name. Raises UserError when nothing answers."""
        try:
            return (await self._client.describe()).models[0]
        except Unreachable as error:
            raise UserError(f"{error}; is `noria up` running? --url names another server") from error

    async def answer(self, request: BenchRequest, timeline: BenchTimeline) -> None:
        """Send one request and record its answer."""
        timeline.begun_s = timeline.begun_s or time.perf_counter()
        try:
            generation = self._client.generate(
                None if self._chat else request.prompt,
                messages=[{"role": "user", "content": request.prompt}] if self._chat else None,
                max_tokens=request.output_tokens,
                temperature=self._temperature,
                ignore_eos=self._ignore_eos,
            )
            async for delta in generation:
                if delta.token_ids:
                    timeline.arrivals.append(time.perf_counter())
            completion = await generation.result()
            usage, finish = completion.usage, completion.choices[0].finish
            timeline.prompt_tokens, timeline.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            timeline.counted_tokens = usage.output_tokens
            timeline.finish = finish.reason
            if finish.reason not in ("stop", "length"):
                timeline.error = finish.detail or finish.reason
        except ClientError as error:
            timeline.error = str(error) or type(error).__name__
        timeline.ended_s = time.perf_counter()

    async def close(self) -> None:
        """Close the socket."""
        await self._client.aclose()
