"""Routes of nodes, queues and the whole cluster."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fairlead.jobfile import schema
from fairlead.server.api import models
from fairlead.server.api.asked import Asker, TheService
from fairlead.server.api.problems import Json

router = APIRouter(prefix="/api/v1", tags=["cluster"])

NodeId = Annotated[str, Path(max_length=256)]


@router.get("/nodes", response_model=models.Nodes)
async def list_nodes(service: TheService) -> Response:
    """The machines, and who is on them."""
    return Json(await run_in_threadpool(service.nodes))


@router.post("/nodes/{node_id}/drain", status_code=202, response_model=models.Node)
async def drain_node(node_id: NodeId, caller: Asker, service: TheService, body: models.Drain | None = None) -> Response:
    """Let nobody new onto a node and, with `by`, have it empty by then. Admins only."""
    by = None if body is None else body.by
    return Json(await run_in_threadpool(service.drain, caller, node_id, by=by), status_code=202)


@router.post("/nodes/{node_id}/undrain", status_code=202, response_model=models.Node)
async def undrain_node(node_id: NodeId, caller: Asker, service: TheService) -> Response:
    """Open a node again. Admins only."""
    return Json(await run_in_threadpool(service.undrain, caller, node_id), status_code=202)


@router.get("/queues", response_model=models.Queues)
async def list_queues(service: TheService) -> Response:
    """The queues: their rules, what they are entitled to now, and what they use."""
    return Json(await run_in_threadpool(service.queues))


@router.get("/cluster", response_model=models.Cluster)
async def get_cluster(service: TheService) -> Response:
    """The summary: what there is, who decides, and how many jobs are where."""
    return Json(await run_in_threadpool(service.cluster))


@router.get("/schema/job", response_model=dict[str, object])
async def get_job_schema() -> Response:
    """The JSON Schema of a job file."""
    return Json(schema())
