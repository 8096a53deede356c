"""Metrics in Prometheus' text format: requests by route and status, latency, and what engines have done."""

from collections.abc import Iterable
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heddle.serving.http.served_model import ServedModels

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class EngineCollector(Collector):
    """Reads counters and loads of all engines when it is asked."""

    def __init__(self, models: ServedModels) -> None:
        self.models = models

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all engines."""
        counted: dict[str, CounterMetricFamily] = {}
        loads: dict[str, GaugeMetricFamily] = {}
        for model in self.models:
            if model.engine is None:
                continue
            labels = [model.source.name]
            for one in fields(model.engine.counters):
                name = f"heddle_{one.name}"
                family = counted.setdefault(name, CounterMetricFamily(name, f"{one.name} so far", labels=["model"]))
                family.add_metric(labels, model.engine.counters.__dict__[one.name])
            for place, count in model.engine.load().items():
                name = f"heddle_load_{place}"
                gauge = loads.setdefault(name, GaugeMetricFamily(name, f"{place} now", labels=["model"]))
                gauge.add_metric(labels, count)
        yield from counted.values()
        yield from loads.values()


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, models: ServedModels) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(models))
        self.requests = Counter("heddle_requests", "requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "heddle_request_seconds",
            "seconds until the response has ended",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )

    def note(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self.registry)
