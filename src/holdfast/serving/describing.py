"""What a model is, for `GET /model`; and the forms of requests, for the OpenAPI description."""

from __future__ import annotations

from itertools import islice
from typing import Any

from fastapi import FastAPI

from . import schemas
from .limits import Limits
from .state import Keeper, Served

FREE = 12  # empty slots whose directions are described
SHOWN = ("images", "pixels", "rows", "text", "body")  # limits that the page needs


def describe(keeper: Keeper, limits: Limits) -> schemas.Description:
    """Describe the model that is served."""
    served = keeper.served
    clf, taught = served.clf, hasattr(served.clf, "model_")
    classes: list[schemas.Class] = []
    if taught:
        kept, slots = clf.model_.kept(), clf.model_.labels.slots_of_classes()
        places = served.atlas.places(slots).round(6).tolist()
        classes = [schemas.Class(label=label, slot=slot, samples=kept.get(slot, (0, 0))[0], direction=place)
                   for label, slot, place in zip(clf.classes_.tolist(), slots, places)]
    taken = {each.slot for each in classes}
    empty = list(islice((slot for slot in range(served.slots) if slot not in taken), FREE))
    embedder = clf.check_embedder().fingerprint if clf.embedder is not None else None
    return schemas.Description(
        model=served.number, name=keeper.folder.resolve().name, takes=keeper.takes,  # type: ignore[arg-type]
        method=clf.method_ if taught else None, embedder=embedder,
        inputs=list(clf.model_.shape) if taught else None, classes=classes,
        slots=served.slots, free=served.slots - len(classes), empty=_fixed(served, empty),
        samples=sum(batch["samples"] for batch in clf.model_.history) if taught else 0,
        batches=clf.model_.taught if taught else 0, can_reject=served.can_reject(), stability=stability(served),
        limits={name: getattr(limits, name) for name in SHOWN},
    )


def _fixed(served: Served, slots: list[int]) -> list[tuple[float, float]]:
    """Return the directions of empty slots; a trainable head has none."""
    return [(x, y) for x, y in served.atlas.places(slots).round(6).tolist()] if served.atlas.polytope else []


def stability(served: Served) -> schemas.Told | None:
    if not hasattr(served.clf, "stability_"):
        return None
    report = served.clf.stability_
    return schemas.Told(action=report.action, answer=report.answer, recall=report.recall)


def _form(labelled: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1,
                   "description": "files in one of ten formats: PNG, JPEG, GIF, WebP, ..."},
    }
    made: dict[str, Any] = {"type": "object", "properties": fields, "required": ["images"]}
    if labelled:
        fields["label"] = {"type": "string", "minLength": 1, "maxLength": 200, "description": "one label for all"}
        fields["labels"] = {"type": "array", "items": {"type": "string"}, "description": "or one label each"}
        made["anyOf"] = [{"required": ["label"]}, {"required": ["labels"]}]
    return made


def _json(schema: type, example: dict[str, Any]) -> dict[str, Any]:
    made = schema.model_json_schema(ref_template="#/components/schemas/{model}")  # type: ignore[attr-defined]
    made.pop("$defs", None)
    return {"schema": made, "example": example}


FORMS: dict[str, dict[str, Any]] = {
    "samples": {"requestBody": {"required": True, "content": {
        "application/json": _json(schemas.Samples, {"texts": ["where is my parcel"]}),
        "multipart/form-data": {"schema": _form(False)},
    }}},
    "lesson": {"requestBody": {"required": True, "content": {
        "application/json": _json(schemas.Lesson, {"texts": ["where is my parcel"], "labels": ["delivery"]}),
        "multipart/form-data": {"schema": _form(True)},
    }}},
    "back": {"requestBody": {"required": False, "content": {
        "application/json": _json(schemas.Back, {"number": 3}),
    }}},
}


def require_token(app: FastAPI, free: tuple[str, ...]) -> None:
    """Say in the OpenAPI description that every route needs the bearer token, except for the free ones."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        made = plain()
        made.setdefault("components", {})["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "the server's token"},
        }
        made["security"] = [{"token": []}]
        for path in made["paths"].keys() & {*free}:
            for operation in made["paths"][path].values():
                operation["security"] = []
        return made

    app.openapi = described  # type: ignore[method-assign]
