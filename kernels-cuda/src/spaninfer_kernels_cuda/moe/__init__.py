"""Mixture of experts: the router's choice, the chosen experts' gated MLPs, and their weighted sum.

`moe` is the whole layer, `prepare` prepares it for one number of tokens; `route`, `gemv` and
`coded_gemv` (few tokens), `grouped_gemm` (many) and `combine` are its parts; `router` makes logits.
"""

from spaninfer_kernels_cuda.moe import coded_gemv, combine, gemv, route, router
from spaninfer_kernels_cuda.moe.call import moe
from spaninfer_kernels_cuda.moe.combine import Norm
from spaninfer_kernels_cuda.moe.gemv import Experts
from spaninfer_kernels_cuda.moe.prepared import Formats, PreparedMoe, prepare
from spaninfer_kernels_cuda.moe.route import RouteOptions, Routing
from spaninfer_kernels_cuda.moe.tuning import (
    GRAIN,
    MAX_CHOICES,
    MoeShape,
    RouteShape,
    check_route,
    check_shape,
)

__all__ = [
    "GRAIN",
    "MAX_CHOICES",
    "VARIANTS",
    "Experts",
    "Formats",
    "MoeShape",
    "Norm",
    "PreparedMoe",
    "RouteOptions",
    "RouteShape",
    "Routing",
    "check_route",
    "check_shape",
    "coded_gemv",
    "combine",
    "gemv",
    "moe",
    "prepare",
    "route",
    "router",
]

VARIANTS = (
    *router.VARIANTS,
    *route.VARIANTS,
    *gemv.VARIANTS,
    *coded_gemv.VARIANTS,
    *combine.VARIANTS,
)
"""Variants of all kernels but those of grouped_gemm, which have theirs."""
