"""The routes of a served model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files as resources
from pathlib import Path as File
from typing import Annotated, Literal

import numpy as np
from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi_offline import FastAPIOffline
from starlette.background import BackgroundTask
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse

from .. import __version__
from ..estimator import versions
from ..estimator.model_files import NAME
from . import answers, schemas
from .batching import Batcher
from .decoding import Decoder
from .describing import FORMS, describe, require_token
from .jobs import Jobs
from .limits import OPEN, Guard, Limits
from .metrics import Measured
from .problems import PROBLEMS, Wrong, handle_errors, log_result
from .reading import Reader, parsed
from .state import Answer, Keeper, Untaught

Reject = Annotated[float | None, Query(gt=0, lt=1, description="share of known samples to refuse, such as 0.05; "
                                       "the label is null where a sample is none of the classes")]


def create_app(
    keeper: Keeper, limits: Limits | None = None, *, token: str | None = None, host: str = "127.0.0.1",
    origins: tuple[str, ...] = (),
) -> FastAPI:
    """Return the ASGI application that serves the keeper's model."""
    limits = limits or Limits()
    decoder, jobs = Decoder(), Jobs(limits.jobs)
    reader = Reader(keeper.takes, limits, decoder, keeper.image_size)
    batcher = Batcher(lambda samples: answers.counted(keeper, samples))

    async def answered(request: Request) -> Sequence[Answer]:
        return await batcher.ask(await reader.samples(request))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if keeper.takes == "images":
            decoder.start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, jobs.close)
        await batcher.close()
        decoder.close()

    app = FastAPIOffline(
        title="holdfast", version=__version__, lifespan=lifespan, redoc_url=None, responses=PROBLEMS,
        description="A model that learns new classes while it answers. Every answer names the number of its model.",
    )
    app.state.keeper, app.state.jobs = keeper, jobs
    handle_errors(app, keeper.folder)

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(resources("holdfast.serving").joinpath("page.html").read_text(encoding="utf-8"))

    @app.get("/favicon.ico", include_in_schema=False)
    async def favicon() -> Response:
        return Response(status_code=204)

    @app.get("/health", tags=["model"])
    async def health() -> schemas.Health:
        """Return whether the server can answer, and the number of its model."""
        served = keeper.served
        count = len(served.clf.classes_) if served.taught else 0
        return schemas.Health(ready=True, model=served.number, classes=count)

    @app.get("/model", tags=["model"])
    async def model() -> schemas.Description:
        """Describe the model: classes, slots, samples seen, version, stability, embedder."""
        return describe(keeper, limits)

    @app.get("/versions", tags=["model"])
    def list_versions() -> schemas.Versions:
        """List the versions that are kept."""
        known = versions.history(keeper.folder) if (keeper.folder / NAME).exists() else []
        rows = [schemas.VersionState(number=v.number, current=v.current, rejected=v.rejected, made=v.made,
                                     classes=v.classes, batches=v.batches, accuracy=v.accuracy) for v in known]
        return schemas.Versions(model=keeper.served.number, versions=rows)

    @app.post("/predict", tags=["use"], openapi_extra=FORMS["samples"])
    async def predict(
        request: Request, reject: Reject = None, top: Annotated[int, Query(ge=1, le=1000)] = 5
    ) -> schemas.Predictions:
        """Say what the samples are. Send images as files of a form, texts or vectors as JSON."""
        found = await answers.within(answered(request), limits.seconds)
        served, threshold = found[0].served, None
        if reject is not None:
            threshold = await asyncio.get_running_loop().run_in_executor(None, served.threshold, reject)
        said = [answers.prediction(answer, threshold, top) for answer in found]
        return schemas.Predictions(model=served.number, threshold=threshold, predictions=said)

    @app.post("/embed", tags=["use"], openapi_extra=FORMS["samples"])
    async def embed(
        request: Request, unit: Annotated[bool, Query(description="vectors of length one")] = False
    ) -> schemas.Vectors:
        """Return the vectors of the samples, for a search index."""
        found = await answers.within(answered(request), limits.seconds)
        vectors = np.stack([answer.vector for answer in found]).astype(np.float64)
        if unit:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
        return schemas.Vectors(model=found[0].served.number, vectors=vectors.astype(np.float32).tolist())

    @app.post("/teach", tags=["teach"], openapi_extra=FORMS["lesson"],
              responses={202: {"model": schemas.JobState, "description": "accepted as a job"}})
    async def teach(
        request: Request,
        busy: Annotated[Literal["wait", "refuse"], Query(description="what to do while another teaches")] = "wait",
        job: Annotated[bool, Query(description="answer at once with a job to follow")] = False,
    ) -> schemas.Taught:
        """Teach samples of new or known classes. The answer comes when the new model is on disk and in use."""
        samples, labels = await answers.within(reader.lesson(request), limits.seconds)
        if all(isinstance(label, str) for label in labels) and keeper.takes == "images":
            labels = [keeper.label(label) for label in labels]
        made = jobs.submit(f"teaching {len(labels)} samples", lambda run: answers.teach(keeper, run, samples, labels),
                           wait=busy == "wait")
        if job:
            made.future.add_done_callback(log_result(keeper.folder))
            return JSONResponse(answers.job_state(made, keeper).model_dump(), 202)  # type: ignore[return-value]
        return await asyncio.wrap_future(made.future)

    @app.get("/jobs/{key}", tags=["teach"])
    async def job_state(key: str) -> schemas.JobState:
        """Return a job's state, progress and result."""
        return answers.job_state(answers.find_job(jobs, key), keeper)

    @app.get("/jobs/{key}/events", tags=["teach"], response_class=StreamingResponse,
             responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}})
    async def job_events(key: str) -> StreamingResponse:
        """Send the job's state as server-sent events, until it is over."""
        job = answers.find_job(jobs, key)
        return StreamingResponse(answers.events(job, keeper), media_type="text/event-stream")

    @app.delete("/classes/{label:path}", tags=["teach"])
    async def forget(label: Annotated[str, Path(description="the class to forget")]) -> schemas.Changed:
        """Forget a class: delete its samples and free its slot."""
        served = keeper.served
        if not served.taught or label not in map(str, served.clf.classes_.tolist()):
            raise Wrong(404, f"The model knows no class {label[:200]!r}.")
        job = jobs.submit("forgetting a class", lambda run: keeper.forget(label), wait=True)
        served = await asyncio.wrap_future(job.future)
        return schemas.Changed(model=served.number, classes=len(served.clf.classes_))

    @app.post("/rollback", tags=["teach"], openapi_extra=FORMS["back"])
    async def rollback(request: Request) -> schemas.Changed:
        """Serve an older version; without a number, the one before."""
        content = await request.body()
        number = parsed(schemas.Back, content).number if content else None
        job = jobs.submit("going back to a version", lambda run: keeper.rollback(number), wait=True)
        served = await asyncio.wrap_future(job.future)
        return schemas.Changed(model=served.number, classes=len(served.clf.classes_))

    @app.get("/export", tags=["model"], response_class=Response, responses={200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}})
    def export(form: Annotated[Literal["model", "onnx"], Query(alias="format")] = "model") -> Response:
        """Return the model's file, or an ONNX graph from inputs (vectors, with an embedder) to probabilities.

        The header `x-model` has the model's number."""
        served = keeper.served
        if not served.taught:
            raise Untaught("The model knows no class yet: there is nothing to export.")
        folder = tempfile.TemporaryDirectory()  # a copy: a lesson may replace the model's own file meanwhile
        path = File(folder.name) / (NAME if form == "model" else "model.onnx")
        try:
            keeper.export(served, path)
        except BaseException:
            folder.cleanup()
            raise
        return FileResponse(path, filename=path.name, media_type="application/octet-stream",
                            headers={"x-model": str(served.number)}, background=BackgroundTask(folder.cleanup))

    @app.get("/metrics", tags=["model"], response_class=Response,
             responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
    async def metrics() -> Response:
        """Return metrics in Prometheus' text format."""
        return Response(keeper.metrics.text(), media_type="text/plain; version=0.0.4")

    if token is not None:
        require_token(app, OPEN)
    app.add_middleware(Guard, limits=limits, token=token, host=host, origins=origins)
    if origins:  # around the guard, so that a page of theirs can read why it was refused
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"],
                           allow_headers=["authorization", "content-type"])
    app.add_middleware(Measured, metrics=keeper.metrics)
    return app
