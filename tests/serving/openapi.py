"""OpenAPI description of the routes that take a body, made from the classes that check the bodies."""

from typing import Any

MODELS = ("gpt", "lstm", "pair", "reader")


def described() -> dict[str, Any]:
    """Return the document; of models, the tests' own are named."""
    from pydantic.json_schema import models_json_schema

    from heddle.serving.http import bodies
    from heddle.serving.http.tasks import bodies as tasks

    routes = {
        "/v1/completions": bodies.CompletionBody,
        "/v1/chat/completions": bodies.ChatBody,
        "/v1/embeddings": bodies.EmbeddingBody,
        "/tokenize": bodies.TokenizeBody,
        "/detokenize": bodies.DetokenizeBody,
        "/v1/heddle/score": bodies.ScoreBody,
        "/v1/heddle/explain": bodies.ExplainBody,
        "/v1/heddle/attention": bodies.AttentionBody,
        "/v1/heddle/logits": bodies.LogitsBody,
        "/v1/heddle/divergence": bodies.DivergenceBody,
        "/v1/heddle/classify": tasks.ClassifyBody,
        "/v1/heddle/tag": tasks.TagBody,
        "/v1/heddle/answer": tasks.AnswerBody,
        "/v1/heddle/fill": tasks.FillBody,
        "/v1/heddle/embed": tasks.EmbedBody,
        "/v1/heddle/rescore": tasks.RescoreBody,
        "/v1/heddle/translate": tasks.TranslateBody,
        "/v1/heddle/summarize": tasks.SummarizeBody,
    }
    kinds = [(body, "validation") for body in routes.values()]
    found, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    for schema in schemas["$defs"].values():
        if "model" in schema["properties"]:
            schema["properties"]["model"] = {"enum": list(MODELS)}
    paths = {}
    for (body, _), path in zip(kinds, routes, strict=True):
        content = {"application/json": {"schema": found[body, "validation"]}}
        responses = {"200": {"description": "an answer"}, "400": {"description": "refused"}}
        paths[path] = {"post": {"requestBody": {"required": True, "content": content}, "responses": responses}}
    info = {"title": "heddle serve", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas["$defs"]}}
