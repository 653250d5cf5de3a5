"""Sources of media: data: URLs, the network, and one folder of local files."""

from spaninfer_multimodal.source.address import not_public
from spaninfer_multimodal.source.fetch import Resolver, fetch
from spaninfer_multimodal.source.policy import FetchPolicy, SourcePolicy

__all__ = ["FetchPolicy", "Resolver", "SourcePolicy", "fetch", "not_public"]
