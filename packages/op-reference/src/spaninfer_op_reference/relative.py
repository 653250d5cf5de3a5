"""Relative position biases: what a head adds to a score for how far apart query and key lie."""

from __future__ import annotations

import math

import numpy as np

from spaninfer_op_reference.arrays import Floats, Ints


def relative_position_buckets(distances: Ints, num_buckets: int, max_distance: int) -> Ints:
    """Return the buckets of distances j - i of a key at j from a query at i, as T5 and MPNet do.

    Keys behind the query have the upper half of the buckets. Of either half, the first
    num_buckets / 4 are of one distance each; those of longer ones grow with the logarithm, up to
    `max_distance`, from which on all share the last (Raffel et al. 2020, section 2.1). The
    logarithm is taken in float32: it decides on which side of an edge a distance falls.
    """
    half = num_buckets // 2
    exact = half // 2
    away = np.abs(distances)
    steps = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    steps = steps / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + steps.astype(np.int32), half - 1)
    buckets: Ints = np.where(away < exact, away, far) + half * (distances > 0)
    return buckets


def relative_position_bias(position_bias: Floats, length: int) -> Floats:
    """[H T T]: the biases of T tokens' scores, from position_bias[H 2R+1] by distance.

    Column R + d is of keys d positions behind the query; farther than R, those of R count.
    """
    reach = position_bias.shape[1] // 2
    places = np.arange(length)
    distances = np.clip(places - places[:, None], -reach, reach)
    result: Floats = position_bias[:, reach + distances]
    return result
