"""What routes have in common: who asks, whom to ask, and how to do it without holding up the event loop."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path
from starlette.requests import Request

from fairlead.server.api.limits import Buckets
from fairlead.server.api.settings import Settings
from fairlead.server.api.streams import Streams
from fairlead.server.auth import Caller
from fairlead.server.metrics import Metrics
from fairlead.server.service import Service


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller  # the gate let nobody through without
    return caller


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


async def _elements(request: Request) -> Buckets:
    elements: Buckets = request.app.state.elements
    return elements


Asker = Annotated[Caller, Depends(_caller)]
TheService = Annotated[Service, Depends(_service)]
TheSettings = Annotated[Settings, Depends(_settings)]
TheStreams = Annotated[Streams, Depends(_streams)]
TheMetrics = Annotated[Metrics, Depends(_metrics)]
#: How many jobs of arrays each user may have changed.
Elements = Annotated[Buckets, Depends(_elements)]

JobId = Annotated[str, Path(description="The id of a job: 12, or 12.3 for element 3 of an array.", max_length=64)]
ArrayNumber = Annotated[
    str, Path(description="What the ids of its jobs begin with: 12 for 12.0 and 12.1.", max_length=64)
]
