"""Models of the Hugging Face hub: names, downloads, and what lies in the local cache."""

from spaninfer.hub.cache import CachedModel, cached_models, find_revisions, remove
from spaninfer.hub.name import FORM, HubName
from spaninfer.hub.pull import locate_or_pull, pull

__all__ = [
    "FORM",
    "CachedModel",
    "HubName",
    "cached_models",
    "find_revisions",
    "locate_or_pull",
    "pull",
    "remove",
]
