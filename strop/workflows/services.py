"""What a workflow may use beside the model that is trained: the endpoint, and auxiliary models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from strop.errors import ConfigError
from strop.inference.endpoint.reply import Answerer
from strop.inference.endpoint.server import Access, Endpoint


class Services:
    """The endpoint of a run, and the models that help in it. Any thread may call."""

    def __init__(
        self, endpoint: Endpoint, policy: str, auxiliary: Mapping[str, Answerer] | None = None
    ) -> None:
        """`policy` is what the model that is trained is called; `auxiliary` are models by their names."""
        self._endpoint = endpoint
        self._policy = policy
        self._auxiliary = dict(auxiliary or {})

    def admit(self, policy: Answerer | None = None) -> AbstractContextManager[Access]:
        """A token for the auxiliary models and, where it is given, for the model that is trained."""
        own = {} if policy is None else {self._policy: policy}
        return self._endpoint.admit({**own, **self._auxiliary})

    def auxiliary(self, name: str) -> Answerer:
        """Raises `ConfigError` where there is none of that name."""
        if name not in self._auxiliary:
            there = f"there are {', '.join(self._auxiliary)}" if self._auxiliary else "there are none"
            raise ConfigError(f"rollout.auxiliary_models: there is no model {name!r}; {there}.")
        return self._auxiliary[name]
