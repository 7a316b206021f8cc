"""The status page with its login, and what machines look at: health and metrics.

The page's files are read once, by the names they have in their directory; no path comes from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Query
from fastapi import Path as PathPart
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairlead.server.api import models
from fairlead.server.api.asked import TheMetrics, TheService, TheSettings
from fairlead.server.api.gate import Gate, same_origin
from fairlead.server.api.problems import Json, problem
from fairlead.server.api.settings import Settings
from fairlead.server.auth import SESSION_S

router = APIRouter(tags=["pages"])

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}

_COMMON = "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
#: The status page loads its own files and nothing else; no script or style stands in the page itself.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    f"connect-src 'self'; manifest-src 'self'; {_COMMON}"
)
#: The login page is one file, because whoever sees it may load no other, and runs no script.
_LOGIN_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {_COMMON}"

_LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Fairlead</title>
<meta name="viewport" content="width=device-width">
<style>body{font:16px system-ui,sans-serif;max-width:28rem;margin:15vh auto;padding:0 1rem}input{width:100%}</style>
<h1>Fairlead</h1><form method="post" action="/session"><p><label>Token <input name="token" type="password"
autocomplete="current-password" required autofocus></label></p><p><button>Log in</button></p></form></html>
"""

#: A page that goes on by itself. A redirect would not do: a browser that was sent here by another site does not send
#: the new cookie along with it.
_GO_ON = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    '<title>Fairlead</title><p><a href="/">Go on</a></p></html>'
)


def load_static(directory: Path) -> dict[str, tuple[bytes, str]]:
    """The page's files by name, with their types."""
    if not directory.is_dir():
        return {}
    files = (path for path in sorted(directory.iterdir()) if path.is_file() and path.suffix in _TYPES)
    return {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in files}


def _static(request: Request) -> Mapping[str, tuple[bytes, str]]:
    files: Mapping[str, tuple[bytes, str]] = request.app.state.static
    return files


def _html(body: str | bytes, policy: str, status: int = 200) -> Response:
    # A form that is sent from a page without a referrer says that it comes from nowhere.
    headers = {
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "same-origin",
        "X-Frame-Options": "DENY",
    }
    return Response(body, status, headers, media_type="text/html; charset=utf-8")


def _login_page(request: Request, status: int = 401) -> Response:
    body = _static(request).get("login.html", (_LOGIN.encode(), ""))[0]
    return _html(body, _LOGIN_POLICY, status)


# -- the page ----------------------------------------------------------------------------------------------------------

_HTML: dict[int | str, dict[str, Any]] = {
    200: {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}},
    401: {"description": "A form to log in with.", "content": {"text/html": {"schema": {"type": "string"}}}},
}


@router.get("/", response_class=Response, responses=_HTML)
async def get_page(request: Request) -> Response:
    """The status page or, for whoever has not logged in, a form to do so."""
    if request.state.caller is None:
        return _login_page(request)
    page = _static(request).get("index.html")
    if page is None:
        raise HTTPException(404, "this installation has no status page")
    return _html(page[0], _PAGE_POLICY)


@router.get(
    "/static/{name}",
    response_class=Response,
    responses={200: {"description": "A file of the page.", "content": {"*/*": {"schema": {"type": "string"}}}}},
)
async def get_static(request: Request, name: Annotated[str, PathPart(max_length=100)]) -> Response:
    """A file of the status page."""
    found = _static(request).get(name)
    if found is None:
        raise HTTPException(404)
    return Response(found[0], headers={"Content-Security-Policy": _PAGE_POLICY}, media_type=found[1])


# -- sessions ----------------------------------------------------------------------------------------------------------


def _with_cookie(response: Response, session: str, settings: Settings) -> Response:
    response.set_cookie(
        settings.cookie,
        session,
        max_age=int(SESSION_S),
        path="/",
        httponly=True,
        samesite="strict",
        secure=settings.secure,
    )
    return response


@router.post(
    "/session",
    response_model=models.Health,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": {"$ref": "#/components/schemas/Login"}}
                for kind in ("application/json", "application/x-www-form-urlencoded")
            },
        }
    },
    responses={303: {"description": "Of a form: on to the page.", "content": {}}, 401: _HTML[401]},
)
async def open_session(request: Request, service: TheService, settings: TheSettings) -> Response:
    """Log a browser in by a token, as JSON or from a form. It may then look, for twelve hours."""
    if not same_origin(request.headers):
        return problem(403, "another site may not log you in", path=request.url.path)
    body = await request.body()
    form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    token = _token(body, form=form)
    caller = None if token is None else service.auth.by_token(token)
    if caller is None:
        refused = _gate(request).failed(request.scope).answer
        return _login_page(request) if form and refused.status_code == 401 else refused
    session = service.auth.open_session(caller)
    done = Response(status_code=303, headers={"Location": "/"}) if form else Json({"status": "ok"})
    return _with_cookie(done, session, settings)


def _gate(request: Request) -> Gate:
    gate: Gate = request.state.gate
    return gate


def _token(body: bytes, *, form: bool) -> str | None:
    """None if there is none: no answer says what was wrong with it."""
    if form:
        try:
            fields = parse_qs(body.decode("ascii"), max_num_fields=10)
        except ValueError:
            return None
        return fields.get("token", [None])[0]
    try:
        return models.Login.model_validate_json(body).token
    except ValidationError:
        return None


@router.delete("/session", status_code=204, response_class=Response)
async def close_session(request: Request, service: TheService, settings: TheSettings) -> Response:
    """Log the browser out. Harmless without a session, so that anybody may ask for it."""
    cookie = _gate(request).cookie(Headers(scope=request.scope))
    if cookie is not None:
        service.auth.close_session(cookie)
    response = Response(status_code=204)
    response.delete_cookie(settings.cookie, path="/", httponly=True, samesite="strict", secure=settings.secure)
    return response


@router.get("/login", response_class=Response, responses=_HTML)
async def log_in(
    request: Request,
    service: TheService,
    settings: TheSettings,
    code: Annotated[str, Query(max_length=100, description="Of POST /api/v1/login-codes.")] = "",
) -> Response:
    """Log a browser in by a one-time code."""
    session = service.auth.redeem(code)
    if session is None:
        refused = _gate(request).failed(request.scope).answer
        return _login_page(request) if refused.status_code == 401 else refused
    return _with_cookie(_html(_GO_ON, _LOGIN_POLICY), session, settings)


# -- machines ----------------------------------------------------------------------------------------------------------


@router.get("/healthz", response_model=models.Health, tags=["health"])
async def is_healthy() -> Response:
    """The process lives."""
    return Json({"status": "ok"})


@router.get("/readyz", response_model=models.Health, tags=["health"])
async def is_ready(request: Request, service: TheService) -> Response:
    """The loop turns, and jobs can be handed in."""
    reason = service.unready()
    return Json({"status": "ok"}) if reason is None else problem(503, reason, path=request.url.path)


@router.get(
    "/metrics",
    tags=["health"],
    response_class=Response,
    responses={200: {"description": "For Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(metrics: TheMetrics) -> Response:
    """Figures in the form that Prometheus reads."""
    return Response(await run_in_threadpool(metrics.exposition), media_type=CONTENT_TYPE_LATEST)
