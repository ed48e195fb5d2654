"""Services for workflows: the endpoint, and auxiliary models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from strop.data.encoding.reply import ChatReplyParser
from strop.errors import ConfigError
from strop.inference.endpoint.server import EndpointAccess, EndpointModel, EndpointServer


class WorkflowServices:
    """Endpoint and auxiliary models of a run. Any thread may call."""

    def __init__(
        self,
        endpoint: EndpointServer,
        policy: str,
        auxiliary: Mapping[str, EndpointModel] | None = None,
        parser: ChatReplyParser | None = None,
    ) -> None:
        """`policy` is the policy's name at the endpoint, and `parser` splits its replies (by default, tool calls in
        the chat template's format); `auxiliary` are the auxiliary models by name."""
        self.parser = parser or ChatReplyParser()
        self._endpoint = endpoint
        self._policy = policy
        self._auxiliary = dict(auxiliary or {})

    @property
    def policy_name(self) -> str:
        """Name of the policy at the endpoint."""
        return self._policy

    @property
    def auxiliary_names(self) -> tuple[str, ...]:
        """Names of the auxiliary models, in the order of the run file."""
        return tuple(self._auxiliary)

    def admit(self, policy: EndpointModel | None = None) -> AbstractContextManager[EndpointAccess]:
        """Register a key for the auxiliary models and, if given, for the policy."""
        models = {} if policy is None else {self._policy: policy}
        return self._endpoint.register({**models, **self._auxiliary})

    def auxiliary(self, name: str) -> EndpointModel:
        """Auxiliary model of that name. Raises `ConfigError` if there is none."""
        if name not in self._auxiliary:
            names = ", ".join(self._auxiliary) or "none"
            raise ConfigError(f"rollout.auxiliary_models has no model {name!r}; configured models: {names}.")
        return self._auxiliary[name]
