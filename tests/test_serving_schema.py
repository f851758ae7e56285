"""Generated requests from the OpenAPI description: none ends in an error of the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")
schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: pip install 'holdfast[http]'")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

from holdfast.estimator import IncrementalClassifier  # noqa: E402
from holdfast.estimator.gate import Gate  # noqa: E402
from holdfast.serving.app import create_app  # noqa: E402
from holdfast.serving.metrics import Metrics  # noqa: E402
from holdfast.serving.state import Keeper, kind_of  # noqa: E402

pytestmark = pytest.mark.slow
WRONG = schemathesis.GenerationMode.NEGATIVE
EXAMPLES = 25  # per route
HELD = [
    schemathesis.checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module", params=["vectors", "images"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    more: dict[str, Any] = {"image_size": 16, "width": 0} if request.param == "images" else {"width": 8}
    clf = IncrementalClassifier(**more, device="cpu", cache=False)
    keeper = Keeper(tmp_path_factory.mktemp("m"), clf, Gate(), kind_of(clf, request.param), Metrics())
    draw = np.random.RandomState(0)
    samples: Any = draw.normal(size=(30, 4)).astype(np.float32)
    if request.param == "images":
        samples = [Image.fromarray(each) for each in draw.randint(0, 255, (30, 16, 16, 3), dtype=np.uint8)]
    keeper.teach(list(samples), ["a", "b", "c"] * 10, lambda *words: None)
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(keeper, host="testserver"))


def test_no_generated_request_breaks_the_server(api: Any) -> None:
    tried = {}
    for found in api.get_all_operations():
        operation = found.ok()
        if operation.path == "/export":
            continue  # seconds per graph

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=WRONG))
        def holds(case: Any) -> None:
            reply = case.call()
            case.validate_response(reply, checks=HELD)
            assert reply.status_code < 400 or len(reply.json()["error"]) > 10
            tried.setdefault(operation.label, set()).add(reply.status_code)  # noqa: B023

        holds()
    assert len(tried) >= 11 and 200 in tried["GET /model"] and 422 in tried["POST /teach"]
