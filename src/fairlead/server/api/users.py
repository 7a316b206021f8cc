"""Routes of users, and of who one is."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fairlead.server.api import models
from fairlead.server.api.asked import Asker, TheService
from fairlead.server.api.problems import Json
from fairlead.server.asking import NotFound
from fairlead.server.auth import CODE_S

router = APIRouter(prefix="/api/v1", tags=["users"])


@router.get("/whoami", response_model=models.Me)
async def who_am_i(caller: Asker) -> Response:
    """Who the token or the session belongs to."""
    return Json({"name": caller.name, "role": caller.role.value, "session": caller.by_cookie})


@router.get("/users", response_model=models.Users)
async def list_users(caller: Asker, service: TheService) -> Response:
    """Everybody who has a token. Admins only."""
    service.must_be_admin(caller)
    users = [{"name": u.name, "role": u.role, "created_at": u.created_at} for u in service.auth.users()]
    return Json({"users": users})


@router.post("/users", status_code=201, response_model=models.Token)
async def add_user(user: models.NewUser, caller: Asker, service: TheService) -> Response:
    """A new user. Their token is shown this once. Admins only."""
    service.must_be_admin(caller)
    token = await run_in_threadpool(service.auth.add, user.name, user.role, now=service.terms.clock())
    return Json({"name": user.name, "role": user.role.value, "token": token}, status_code=201)


@router.delete("/users/{name}", status_code=204, response_class=Response)
async def remove_user(name: Annotated[str, Path(max_length=64)], caller: Asker, service: TheService) -> Response:
    """Take a user's token and sessions away; their jobs stay. Admins only."""
    service.must_be_admin(caller)
    if not any(user.name == name for user in service.auth.users()) or not await run_in_threadpool(
        service.auth.remove, name
    ):
        raise NotFound(f"there is no user {name!r}")
    return Response(status_code=204)


@router.post("/login-codes", status_code=201, response_model=models.Code)
async def make_login_code(caller: Asker, service: TheService) -> Response:
    """A word by which a browser can log in as you: once, and within two minutes."""
    code = service.auth.make_code(caller)
    return Json({"code": code, "path": f"/login?code={quote(code)}", "expires_in_s": CODE_S}, status_code=201)
