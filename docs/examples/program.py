"""What a model becomes: a tree of nodes, then a flat list of operations."""

import json

import spaninfer_demo
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.program.lower import lower
from spaninfer_engine.spec import find, parameter_count, resolve

with open_checkpoint(spaninfer_demo.path()) as checkpoint:
    decoder = resolve(find(checkpoint.config), checkpoint.config, checkpoint.reader.names)

print(f"{parameter_count(decoder):,} parameters in {len(decoder.layers)} layers")
print(json.dumps([group.kv_heads for group in decoder.groups]), "key and value heads per group")
print("\n".join(str(operation) for operation in lower(decoder).operations[:16]))
