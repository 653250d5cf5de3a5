"""The types of arguments: numpy arrays of any floating-point or integer width."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.integer[Any]]
