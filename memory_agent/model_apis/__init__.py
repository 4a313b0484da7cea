"""Calls to the HTTP APIs of model providers: embeddings, and chat completions.

Read `api` first. `open_api` imports the HTTP client, which is an extra, only when a provider is set in the settings.
Decision 0011 compares this client with the providers' own packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memory_agent.errors import ProviderError
from memory_agent.model_apis.endpoint import ModelEndpoint, check_url, is_exposed, is_loopback

if TYPE_CHECKING:
    from memory_agent.model_apis.api import ModelApi

__all__ = ["ModelEndpoint", "check_url", "is_exposed", "is_loopback", "open_api"]


def open_api(endpoint: ModelEndpoint) -> ModelApi:
    """Return the API, without connecting; the caller closes it.

    Raises `SettingsError`, and `ProviderError` if the HTTP client is not installed.
    """
    try:
        from memory_agent.model_apis.api import ModelApi
    except ImportError as error:
        raise ProviderError(endpoint.provider, "requires `pip install httpx2`") from error
    return ModelApi(endpoint)
