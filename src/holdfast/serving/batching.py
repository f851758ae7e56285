"""Micro-batching: predictions that arrive while the model works are answered together in its next pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MOST = 256  # samples per pass


class Batcher:
    """Collects requests and gives them to `answer` together; nobody waits for a clock.

    `answer` takes a list of samples and returns a list of as many answers. If a joint pass fails, each request is
    answered alone, so that a bad sample harms only its own request."""

    def __init__(self, answer: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._answer = answer
        self._waiting: asyncio.Queue[tuple[Sequence[Any], asyncio.Future[Any]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictions")
        self._task: asyncio.Task[None] | None = None

    async def ask(self, samples: Sequence[Any]) -> Sequence[Any]:
        """Return one answer per sample."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._waiting.put((samples, future))
        return await future

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            group = [await self._waiting.get()]
            count = len(group[0][0])
            while not self._waiting.empty() and count < MOST:
                group.append(self._waiting.get_nowait())
                count += len(group[-1][0])
            group = [each for each in group if not each[1].done()]  # a request that timed out
            if not group:
                continue
            for (_, future), result in zip(group, await loop.run_in_executor(self._thread, self._pass, group)):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _pass(self, group: list[tuple[Sequence[Any], Any]]) -> list[Any]:
        if len(group) > 1:
            try:
                found, parts, start = self._answer([item for samples, _ in group for item in samples]), [], 0
                for samples, _ in group:
                    parts.append(found[start : start + len(samples)])
                    start += len(samples)
                return parts
            except Exception:
                pass  # find out whose fault it is
        results: list[Any] = []
        for samples, _ in group:
            try:
                results.append(self._answer(samples))
            except Exception as error:
                results.append(error)
        return results
