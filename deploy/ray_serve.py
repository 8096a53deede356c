"""Ray Serve deployment of the app of `heddle serve`: several replicas on a cluster, each with its own engine.

    pip install 'heddle[serve]' 'ray[serve]'
    serve run deploy.ray_serve:build models=first=runs/first,second=runs/second replicas=2 slots=16

Every node needs the models under the same paths. Keys come from HEDDLE_API_KEY in the environment of the replicas.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from fastapi import FastAPI
from ray import cloudpickle, serve
from ray.serve import Application

import heddle
from heddle.core import UsageError
from heddle.serve_app import serve_app
from heddle.serving import Address, EngineConfig

ARGUMENTS = {  # with what stands for each if it is left out
    "models": "",  # NAME=MODEL, with commas between them
    "replicas": "1",
    "slots": str(EngineConfig.slots),  # of each replica
    "waiting": str(EngineConfig.waiting),
    "max_wait": "120",  # seconds, as of heddle serve
    "device": "auto",  # each replica asks Ray for a GPU for cuda alone: say so on a cluster with GPUs
    "host": "127.0.0.1",  # where Ray's proxy listens; another than loopback needs a key
    "allowed_hosts": "",  # names in the Host header, with commas between them
}
N = TypeVar("N", int, float)
KEY = "HEDDLE_API_KEY"
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that other nodes need not have this file


def build(arguments: Mapping[str, object]) -> Application:
    """Return the application, for `serve run` and for the `args` of a config file."""
    unknown = sorted(arguments.keys() - ARGUMENTS.keys())
    if unknown:
        raise UsageError(f"arguments: want some of {', '.join(ARGUMENTS)}, got {unknown[0]}")
    words = ARGUMENTS | {name: str(value) for name, value in arguments.items()}
    named = [one.partition("=") for one in words["models"].split(",")]
    models = {name: path for name, _, path in named}
    if not all(name and path for name, path in models.items()):
        raise UsageError(f"models: want NAME=MODEL,..., got {words['models'] or 'none'}")
    if len(models) < len(named):
        raise UsageError(f"models: want each name once, got {words['models']}")
    slots, waiting, replicas = (_number(words, name, int) for name in ("slots", "waiting", "replicas"))
    if replicas < 1:
        raise UsageError(f"replicas: want at least 1, got {replicas}")
    config = EngineConfig(slots=slots, waiting=waiting, max_wait=_number(words, "max_wait", float))

    def app() -> FastAPI:
        """Load the models in a replica."""
        names = tuple(filter(None, words["allowed_hosts"].split(",")))
        keys = tuple(filter(None, [os.environ.get(KEY)]))
        lms = {name: heddle.load(path, device=words["device"]) for name, path in models.items()}
        return serve_app(lms, config, Address(words["host"], keys=keys, hosts=names))

    replica = serve.ingress(app)(Replica)
    deployment = serve.deployment(
        replica,
        name="heddle",
        num_replicas=replicas,
        max_ongoing_requests=2 * (slots + waiting),  # more than the engine takes, so that its 429 is what clients see
        ray_actor_options={"num_cpus": 1, "num_gpus": int(words["device"].partition(":")[0] == "cuda")},
        graceful_shutdown_timeout_s=40,
    )
    return deployment.bind()


def _number(words: Mapping[str, str], name: str, kind: Callable[[str], N]) -> N:
    """Return an argument that is a number."""
    try:
        return kind(words[name])
    except ValueError:
        raise UsageError(f"{name}: want a number, got {words[name]}") from None


class Replica:
    """One process with the app; Ray replaces it when an engine has died."""

    app: FastAPI

    def check_health(self) -> None:
        """Raise if an engine has died."""
        if not self.app.state.models.alive:
            raise RuntimeError("an engine has died")
