"""An answer of the bundled model: the proof that everything fits together."""

from __future__ import annotations

import time
import warnings

from spaninfer_engine import Engine

from spaninfer.doctor.finding import Finding, Verdict

_TOKENS = 16


def check_answer() -> Finding:
    """Load the bundled model and have it continue a text; warnings on the way are notes."""
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with Engine("demo", memory="64MiB") as engine:
                loaded = time.perf_counter()
                engine.generate("Once upon a time", max_tokens=_TOKENS, temperature=0)
                backend = engine.resolved.backend
        except Exception as error:  # whatever it is, a person wants to know
            return Finding("answer", f"{type(error).__name__}: {error}", Verdict.WRONG, "see above")
    ended = time.perf_counter()
    seen = (
        f"bundled model on {backend}: loaded in {loaded - begun:.1f} s, "
        f"{_TOKENS / (ended - loaded):,.0f} tokens/s"
    )
    said = "; ".join(sorted({str(each.message) for each in warned}))
    return Finding("answer", seen, Verdict.NOTE if said else Verdict.OK, said)
