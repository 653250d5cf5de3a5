"""Mixture of experts: the router's choice, the chosen experts' gated MLPs, and their weighted sum.

`moe` is the whole layer, `prepare` prepares it for one number of tokens; `route`, `gemv` and
`coded_gemv` (few tokens), `grouped_gemm` (many) and `combine` are its parts; `router` makes logits.
"""

from spaninfer_kernels_cuda.moe import coded_gemv, combine, gemv, route, router, tuning
from spaninfer_kernels_cuda.moe.call import Formats, PreparedMoe, moe, prepare
from spaninfer_kernels_cuda.moe.combine import Norm
from spaninfer_kernels_cuda.moe.gemv import Experts
from spaninfer_kernels_cuda.moe.route import RouteOptions, Routing
from spaninfer_kernels_cuda.moe.tuning import MoeShape

__all__ = [
    "VARIANTS",
    "Experts",
    "Formats",
    "MoeShape",
    "Norm",
    "PreparedMoe",
    "RouteOptions",
    "Routing",
    "coded_gemv",
    "combine",
    "gemv",
    "moe",
    "prepare",
    "route",
    "router",
    "tuning",
]

VARIANTS = (
    *router.VARIANTS,
    *route.VARIANTS,
    *gemv.VARIANTS,
    *coded_gemv.VARIANTS,
    *combine.VARIANTS,
)
"""Variants of all kernels but those of grouped_gemm, which have theirs."""
