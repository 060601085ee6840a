"""A Noria stack as the target, through the client library instead of HTTP."""

import time

from noria.cli.bench.request_timeline import Observed
from noria.cli.bench.workload import Job
from noria.client import AsyncClient, ClientError, Curve, Unreachable
from noria.shared.errors import UserError


class MailboxTarget:
    """One stack, over one socket."""

    def __init__(
        self, endpoint: str, curve: Curve | None = None, *, temperature: float, ignore_eos: bool, chat: bool
    ) -> None:
        self._client = AsyncClient(endpoint, curve=curve)
        self._temperature = temperature
        self._ignore_eos = ignore_eos
        self._chat = chat

    async def describe(self) -> str:
        """The served model's name. Raises UserError when nothing answers."""
        try:
            return (await self._client.describe()).models[0]
        except Unreachable as error:
            raise UserError(f"{error}; is `noria up` running? --url names another server") from error

    async def answer(self, job: Job, observed: Observed) -> None:
        """Send one request and note what comes."""
        observed.begun_s = observed.begun_s or time.perf_counter()
        try:
            generation = self._client.generate(
                None if self._chat else job.prompt,
                messages=[{"role": "user", "content": job.prompt}] if self._chat else None,
                max_tokens=job.output_tokens,
                temperature=self._temperature,
                ignore_eos=self._ignore_eos,
            )
            async for delta in generation:
                if delta.token_ids:
                    observed.arrivals.append(time.perf_counter())
            completion = await generation.result()
            usage, finish = completion.usage, completion.choices[0].finish
            observed.prompt_tokens, observed.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            observed.counted_tokens = usage.output_tokens
            observed.finish = finish.reason
            if finish.reason not in ("stop", "length"):
                observed.error = finish.detail or finish.reason
        except ClientError as error:
            observed.error = str(error) or type(error).__name__
        observed.ended_s = time.perf_counter()

    async def close(self) -> None:
        """Close the socket."""
        await self._client.aclose()
