"""The options of section `[telemetry]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces and metrics: what is recorded, and where it is sent by OTLP."""

    otlp_endpoint: Annotated[
        str,
        Meta(
            description="OTLP endpoint (http://HOST:4318, for gRPC http://HOST:4317); no export where empty.",
            extra=flags("--otlp-endpoint") | {"variable": "OTEL_EXPORTER_OTLP_ENDPOINT"},
        ),
    ] = ""
    otlp_protocol: Annotated[
        Literal["http/protobuf", "grpc"],
        Meta(
            description="How it is sent; grpc needs the extra `grpc`.",
            extra=flags("--otlp-protocol") | {"variable": "OTEL_EXPORTER_OTLP_PROTOCOL"},
        ),
    ] = "http/protobuf"
    otlp_metrics: Annotated[
        bool, Meta(description="Send metrics there, too; not needed where /metrics is scraped.")
    ] = True
    sample_ratio: Annotated[
        float,
        Meta(
            description="Share of requests traced, where callers have not decided already.",
            extra=flags("--trace-sample-ratio"),
            ge=0,
            le=1,
        ),
    ] = 1.0
    step_ratio: Annotated[
        float, Meta(description="Share of the steps without an arrival that are shown in traces.", ge=0, le=1)
    ] = 0.1
    spans_kept: Annotated[
        int, Meta(description="Recent spans that each process keeps for `noria trace`.", ge=0, le=100_000)
    ] = 4096
    tenants_max: Annotated[
        int, Meta(description="Tenants with metrics of their own; the others are added up as `other`.", ge=1)
    ] = 50
