"""The real servers that tests of this layer may ask for by name."""

from fixtures import (
    apiserver,
    namespace,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    redis_server,
    warm_parents,
    warm_runs,
)

__all__ = [
    "apiserver",
    "namespace",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "redis_server",
    "warm_parents",
    "warm_runs",
]
