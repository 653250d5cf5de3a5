"""The door for command lines: key files, addresses, and what is found in a chat template."""

from __future__ import annotations

from spaninfer_serving.admission.keys import hash_of, read_admin_file, read_key_file
from spaninfer_serving.chat.traits import traits_of
from spaninfer_serving.settings import is_loopback

__all__ = ["hash_of", "is_loopback", "read_admin_file", "read_key_file", "traits_of"]
