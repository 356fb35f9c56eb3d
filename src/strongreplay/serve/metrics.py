"""ServiceMetrics: counts and times of the service in Prometheus' text format."""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class ServiceMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ser_requests", "Requests by route and status", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "ser_request_seconds", "Time of a request", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.batches = Histogram(
            "ser_batch_images", "Images of a forward pass", buckets=IMAGES, registry=self.registry
        )
        self.forward = Histogram(
            "ser_forward_seconds", "Time of a forward pass", buckets=SECONDS, registry=self.registry
        )
        self.answers = Counter(
            "ser_answers", "Answers by version and label", ["version", "label"], registry=self.registry
        )
        self.samples = Gauge("ser_traffic_samples", "Newest samples with scores", registry=self.registry)
        self.unlike = Gauge(
            "ser_unlike_share", "Share of them that is unlike the held-out samples", registry=self.registry
        )
        self.waiting = Gauge("ser_waiting_images", "Images in the queue", registry=self.registry)
        self.reloads = Gauge("ser_reloads", "Versions loaded since the start", registry=self.registry)
        self.version = Gauge("ser_version", "1 for the served version", ["version"], registry=self.registry)

    def on_batch(self, images: int, seconds: float) -> None:
        self.batches.observe(images)
        self.forward.observe(seconds)

    def on_traffic(self, samples: int, unlike: float | None) -> None:
        self.samples.set(samples)
        self.unlike.set(math.nan if unlike is None else unlike)

    def on_request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self, version: str, num_waiting: int, num_reloads: int) -> bytes:
        self.waiting.set(num_waiting)
        self.reloads.set(num_reloads)
        self.version.clear()
        self.version.labels(version).set(1)
        return generate_latest(self.registry)
