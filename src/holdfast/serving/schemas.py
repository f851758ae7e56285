"""What requests and answers look like; the OpenAPI description is made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

Label = StrictStr | StrictInt | StrictBool
Number = Annotated[float, Field(allow_inf_nan=False)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Every error has this form."""

    error: str = Field(description="a sentence that says what is wrong and what to do",
                       examples=["The model knows no class yet: teach it one first."])


class Samples(Strict):
    """Texts or vectors; images are sent as files of a form."""

    texts: list[StrictStr] | None = Field(None, min_length=1, examples=[["where is my parcel"]])
    vectors: list[list[Number]] | None = Field(None, min_length=1)


class Lesson(Samples):
    """Samples with one label each, or one label for all."""

    labels: list[Label] = Field(min_length=1, examples=[["delivery"]])


class Chance(BaseModel):
    label: Any
    probability: float


class Prediction(BaseModel):
    label: Any = Field(description="the most likely label; null where it is none of the classes")
    probability: float
    novelty: float | None = Field(description="larger means less like any class")
    best: list[Chance]
    place: tuple[float, float] = Field(description="where the model puts the sample on the map of /model")


class Predictions(BaseModel):
    model: int = Field(description="the number of the model that answered")
    threshold: float | None = Field(description="the novelty above which the label is null, with reject")
    predictions: list[Prediction]


class Vectors(BaseModel):
    model: int
    vectors: list[list[float]]


class Class(BaseModel):
    label: Any
    slot: int
    samples: int = Field(description="samples learned (solved), or kept in memory (trained)")
    direction: tuple[float, float] = Field(description="its direction, projected to the map")


class Told(BaseModel):
    action: str = Field(description="what to do with an index of vectors: keep, refresh, rebuild or unknown")
    answer: str
    recall: float | None = None


class Description(BaseModel):
    model: int
    name: str
    takes: Literal["images", "texts", "vectors"]
    method: str | None
    embedder: str | None
    inputs: list[int] | None = Field(description="the shape of one sample, once it is known")
    classes: list[Class]
    slots: int
    free: int
    empty: list[tuple[float, float]] = Field(description="directions of the next empty slots on the map")
    samples: int
    batches: int
    can_reject: bool = Field(description="whether there are enough samples to refuse strangers")
    stability: Told | None
    limits: dict[str, float]


class Health(BaseModel):
    ready: bool
    model: int
    classes: int


class Taught(BaseModel):
    model: int = Field(description="the number of the model in use now")
    accepted: bool = Field(description="false if the gate kept the new model aside")
    version: int = Field(description="the number of the model that was made")
    reason: str
    samples: int
    classes: int
    seconds: float
    stability: Told | None


class JobState(BaseModel):
    id: str
    what: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int
    total: int | None
    unit: str
    result: Taught | None = None
    error: str | None = None


class Changed(BaseModel):
    model: int
    classes: int


class VersionState(BaseModel):
    number: int
    current: bool
    rejected: bool
    made: float = Field(description="seconds since 1970")
    classes: int
    batches: int
    accuracy: float | None


class Versions(BaseModel):
    model: int
    versions: list[VersionState]


class Back(Strict):
    number: StrictInt | None = Field(None, ge=1, description="the version to serve; by default the one before")
