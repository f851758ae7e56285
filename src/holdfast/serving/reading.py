"""Requests to samples and labels: forms of images, JSON of texts and vectors; each within the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from .. import files
from .decoding import Decoder
from .limits import Limits
from .problems import Wrong, sentence
from .schemas import Lesson, Samples

Body = TypeVar("Body", bound=BaseModel)
ONE = {"images": "files of a form, in fields `images`", "texts": 'JSON like {"texts": ["..."]}',
       "vectors": 'JSON like {"vectors": [[0.1, 0.2]]}'}


class Reader:
    """Reads the samples of requests for a model that takes one kind of them."""

    def __init__(
        self, takes: str, limits: Limits, decoder: Decoder, image_size: Callable[[], tuple[int, int] | None]
    ) -> None:
        self.takes, self.limits, self.decoder, self.image_size = takes, limits, decoder, image_size

    async def samples(self, request: Request) -> list[Any]:
        """Return the samples of a request."""
        return (await self._read(request, Samples))[0]

    async def lesson(self, request: Request) -> tuple[list[Any], list[Any]]:
        """Return samples and one label for each. Labels of a form are texts."""
        samples, labels = await self._read(request, Lesson)
        if len(labels) == 1:
            labels = labels * len(samples)
        if len(labels) != len(samples):
            count = f"There are {len(samples)} samples, but {len(labels)} labels"
            raise Wrong(422, f"{count}: give one each, or one for all.")
        for label in labels:
            if isinstance(label, str) and not 0 < len(label) <= self.limits.label:
                raise Wrong(422, f"A label has {len(label)} characters; it must have 1 to {self.limits.label}.")
            if isinstance(label, str) and (not label.isprintable() or not label.strip()):
                raise Wrong(422, "A label has characters that cannot be shown, or only spaces: write a name.")
            if isinstance(label, int) and not -(2**53) < label < 2**53:
                raise Wrong(422, "A label is a whole number beyond 2^53, which JSON readers round: use a text.")
        return samples, labels

    async def _read(self, request: Request, schema: type[Samples]) -> tuple[list[Any], list[Any]]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            return await self._form(request, labelled=schema is Lesson)
        if kind != "application/json":
            raise Wrong(415, f"The content type is {kind[:100] or 'missing'!r}; this model takes {ONE[self.takes]}.")
        body = parsed(schema, await request.body())
        given = {"texts": body.texts, "vectors": body.vectors}
        if [name for name, value in given.items() if value is not None] != [self.takes]:
            raise Wrong(422, f"This model takes {self.takes}, and only those: send {ONE[self.takes]}.")
        samples: list[Any] = given[self.takes] or []
        self._check_rows(samples)
        return samples, list(getattr(body, "labels", []))

    def _check_rows(self, samples: list[Any]) -> None:
        if len(samples) > self.limits.rows:
            raise Wrong(413, f"There are {len(samples):,} samples; send at most {self.limits.rows:,} at a time.")
        most, unit = (self.limits.text, "characters") if self.takes == "texts" else (self.limits.numbers, "numbers")
        for row, sample in enumerate(samples):
            if not 0 < len(sample) <= most:
                raise Wrong(422, f"Sample {row} has {len(sample):,} {unit}; it must have 1 to {most:,}.")

    async def _form(self, request: Request, *, labelled: bool) -> tuple[list[Any], list[Any]]:
        if self.takes != "images":
            raise Wrong(415, f"This model takes {self.takes}, not files: send {ONE[self.takes]}.")
        form = await self._parsed_form(request)
        uploads = [value for value in form.getlist("images") if not isinstance(value, str)]
        labels = [str(value) for name in ("label", "labels") for value in form.getlist(name)]
        contents = [(f"image {row}", await upload.read()) for row, upload in enumerate(uploads)]
        await form.close()
        if unknown := sorted({*form} - ({"images", "label", "labels"} if labelled else {"images"})):
            raise Wrong(422, f"The form has a field {unknown[0][:100]!r}; it may have images"
                             f"{', label and labels' if labelled else ''}.")
        if not uploads:
            raise Wrong(422, "The form has no files in fields `images`: add at least one.")
        if len(uploads) > self.limits.images:
            raise Wrong(413, f"There are {len(uploads)} images; send at most {self.limits.images} at a time.")
        if labelled and not labels:
            raise Wrong(422, "The form has no field `label`: give one for all images, or `labels`, one each.")
        size, seconds = self.image_size(), self.limits.seconds
        return await self.decoder.decode(contents, self.limits.pixels, size, seconds), labels

    async def _parsed_form(self, request: Request) -> FormData:
        """Return the fields of a form. Its parts are counted first: each would become a file."""
        boundary = parse_options_header(request.headers["content-type"])[1].get(b"boundary")
        if not boundary:
            raise Wrong(400, "The form cannot be read: its content type names no boundary.")
        most = 2 * self.limits.images + 1  # a label for each image, and one more
        if (parts := (await request.body()).count(b"--" + boundary) - 1) > most:
            raise Wrong(413, f"The form has {parts:,} parts; send at most {self.limits.images} images at a time.")
        try:  # whatever the parser raises is about the form
            return await request.form(max_files=most, max_fields=most, max_part_size=10_000)
        except (MultiPartException, HTTPException) as error:
            why = getattr(error, "message", None) or getattr(error, "detail", "") or "it is cut off"
            raise Wrong(400, f"The form cannot be read: {why}") from error
        except (ValueError, LookupError) as error:
            raise Wrong(400, "The form cannot be read: it is not multipart/form-data.") from error


def parsed(schema: type[Body], content: bytes) -> Body:
    """Return the JSON body as `schema`, or refuse it with a sentence."""
    try:
        value = files.parse_json(content.decode())
    except (ValueError, UnicodeDecodeError) as error:
        raise Wrong(400, f"The body is not JSON: {str(error)[:200]}.") from error
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise Wrong(422, sentence(error.errors(include_url=False, include_input=False))) from error
