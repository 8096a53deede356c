"""The page of the playground: files of the package, under a policy that lets it reach its own server alone."""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from heddle.serving.http.errors import ApiError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FOLDER = files("heddle.serving") / "static"
# Only these names are ever read: a path in a request opens no file.
CONTENTS = {one.name: one.read_bytes() for one in FOLDER.iterdir() if one.name.endswith(tuple(TYPES))}
PAGE_PATHS = frozenset(("/", *(f"/static/{name}" for name in CONTENTS)))


def _file(name: str) -> Response:
    kind = TYPES[name[name.rindex(".") :]]
    return Response(CONTENTS[name], 200, HEADERS, kind)


async def page(request: Request) -> Response:
    """Answer GET /: the page."""
    return _file("index.html")


async def page_file(request: Request) -> Response:
    """Answer GET /static/{name}: a script or style of the page."""
    name = request.path_params["name"]
    if name not in CONTENTS:
        raise ApiError(404, "no such route", code="unknown_url")
    return _file(name)
