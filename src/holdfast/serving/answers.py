"""From what the model says to the answers of the routes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from . import schemas
from .describing import stability
from .jobs import Job, Jobs
from .problems import Wrong, problem_of
from .state import Answer, Keeper


def counted(keeper: Keeper, samples: Any) -> list[Answer]:
    """Predict samples, and count them."""
    found = keeper.served.answer(samples)
    keeper.metrics.samples.inc(len(samples))
    keeper.metrics.passes.inc()
    return found


async def within(work: Any, seconds: float) -> Any:
    """Return the result of a coroutine, or refuse the request if it takes longer."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise Wrong(504, f"There was no answer within {seconds:g} seconds; send fewer samples, or try later.") from None


def prediction(answer: Answer, threshold: float | None, top: int) -> schemas.Prediction:
    """Describe the answer for one sample; its label is None if its novelty is above the threshold."""
    order = np.argsort(-answer.chances, kind="stable")[:top].tolist()
    best = [schemas.Chance(label=answer.labels[i], probability=float(answer.chances[i])) for i in order]
    strange = threshold is not None and answer.novelty is not None and answer.novelty > threshold
    return schemas.Prediction(label=None if strange else best[0].label, probability=best[0].probability,
                              novelty=answer.novelty, best=best, place=answer.place)


def teach(keeper: Keeper, job: Job, samples: Any, labels: list[Any]) -> schemas.Taught:
    """Teach the samples as a job, and describe the new model."""
    began = time.perf_counter()
    job.progress(0, len(labels), "samples")
    served, version, verdict = keeper.teach(samples, labels, job.progress)
    return schemas.Taught(
        model=served.number, accepted=verdict.passed, version=version, reason=verdict.reason, samples=len(labels),
        classes=len(served.clf.classes_) if served.taught else 0, seconds=round(time.perf_counter() - began, 3),
        stability=stability(served),
    )


def find_job(jobs: Jobs, key: str) -> Job:
    """Return the job of this id, or refuse the request."""
    try:
        return jobs[key]
    except KeyError:
        raise Wrong(404, "There is no such job; finished ones are forgotten after a while.") from None


def job_state(job: Job, keeper: Keeper) -> schemas.JobState:
    """Describe a job, with its result or its error when it is over."""
    result, error = None, None
    if job.over:
        problem = job.future.exception()
        if problem is None:
            result = job.future.result()
        else:
            error = problem_of(problem, keeper.folder)[1]
    return schemas.JobState(id=job.id, what=job.what, state=job.state, done=job.done,  # type: ignore[arg-type]
                            total=job.total, unit=job.unit, result=result, error=error)


async def events(job: Job, keeper: Keeper) -> AsyncIterator[str]:
    """Yield the job's state as a server-sent event whenever it changes, until it is over."""
    last = None
    while True:
        over = job.over
        state = job_state(job, keeper).model_dump()
        if state != last:
            yield f"data: {json.dumps(state)}\n\n"
            last = state
        if over:
            return
        await asyncio.sleep(0.1)
