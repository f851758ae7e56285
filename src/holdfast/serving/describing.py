"""What a model is, for `GET /model`; and the forms of requests, for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from . import schemas
from .limits import Limits
from .state import Keeper, Served, direction

SHOWN = ("images", "pixels", "rows", "text", "body")  # limits that the page needs


def describe(keeper: Keeper, limits: Limits) -> schemas.Description:
    """Describe the model that is served."""
    served = keeper.served
    clf, taught = served.clf, hasattr(served.clf, "model_")
    classes: list[schemas.Class] = []
    if taught:
        kept, slots = clf.model_.kept(), clf.model_.labels.slots
        classes = [schemas.Class(label=label, slot=slots[label], samples=kept.get(slots[label], (0, 0))[0],
                                 direction=direction(slots[label])) for label in clf.classes_.tolist()]
    embedder = clf.check_embedder().fingerprint if clf.embedder is not None else None
    return schemas.Description(
        model=served.number, name=keeper.folder.resolve().name, takes=keeper.takes,  # type: ignore[arg-type]
        method=clf.method_ if taught else None, embedder=embedder,
        inputs=list(clf.model_.shape) if taught else None, classes=classes,
        slots=clf.model_.labels.capacity if taught else clf.slots,
        free=clf.model_.labels.free if taught else clf.slots,
        samples=sum(batch["samples"] for batch in clf.model_.history) if taught else 0,
        batches=clf.model_.taught if taught else 0, can_reject=served.can_reject(), stability=stability(served),
        limits={name: getattr(limits, name) for name in SHOWN},
    )


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
    needed = ["images"]
    if labelled:
        fields["label"] = {"type": "string", "minLength": 1, "maxLength": 200, "description": "one label for all"}
        fields["labels"] = {"type": "array", "items": {"type": "string"}, "description": "or one label each"}
        needed.append("label")
    return {"type": "object", "properties": fields, "required": needed}


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
