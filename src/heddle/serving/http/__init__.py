"""HTTP: OpenAI's protocol over engines; needs the extra `serve`."""

from heddle.serving.http.app import make_app
from heddle.serving.http.gate import Access
from heddle.serving.http.served_model import ModelSource, Scorer, ServedModel, ServedModels
from heddle.serving.http.server import serve
