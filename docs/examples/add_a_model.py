"""An architecture that nobody knows yet: one TOML file, checked and then run."""

import json
import shutil
from pathlib import Path

import spaninfer_demo
from spaninfer import Engine, SamplingParams
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.spec.describe import check_file

spec = Path(__file__).with_name("fable.toml")

# A checkpoint of the new kind. There is none, so the bundled one lends its weights.
folder = Path(shutil.copytree(spaninfer_demo.path(), "fable"))
config = json.loads((folder / "config.json").read_text())
config["architectures"] = ["FableForCausalLM"]
config["width"] = config.pop("hidden_size")
config["depth"] = config.pop("num_hidden_layers")
(folder / "config.json").write_text(json.dumps(config))

# What `spaninfer spec check fable.toml --checkpoint fable` prints: names, shapes, unread keys.
with open_checkpoint(folder) as checkpoint:
    shapes = {name: checkpoint.reader.shape(name) for name in checkpoint.reader.names}
    findings = check_file(spec, checkpoint.config, shapes)
for finding in findings:
    print(finding.level, finding.text)
assert not any(finding.level == "error" for finding in findings)

with Engine(folder, spec=spec) as engine:
    print(engine.generate("Once upon a time", SamplingParams(max_tokens=24)).text)
