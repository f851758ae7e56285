"""Prometheus metrics of one server."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class Metrics:
    """Counters and gauges in a registry of their own, so that two servers in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("holdfast_requests", "requests answered", ["method", "route", "status"], **make)
        self.latency = Histogram(
            "holdfast_request_seconds", "seconds until a request was answered", ["route"], buckets=BUCKETS, **make
        )
        self.samples = Counter("holdfast_samples_predicted", "samples predicted", **make)
        self.passes = Counter("holdfast_prediction_batches", "passes through the model that predicted them", **make)
        self.taught = Counter("holdfast_batches_taught", "batches that were taught and accepted", **make)
        self.rejected = Counter("holdfast_batches_rejected", "batches that the gate refused", **make)
        self.classes = Gauge("holdfast_classes", "classes that the model knows", **make)
        self.version = Gauge("holdfast_model_version", "number of the model in use", **make)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware: count each request and its seconds by route."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def watch(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # a name from the path would grow without bound
            method = scope["method"] if scope["method"] in ("GET", "POST", "DELETE") else "other"
            self.metrics.requests.labels(method, route, status).inc()
            self.metrics.latency.labels(route).observe(time.perf_counter() - began)
