"""Linear interpolation between scattered points in space, by scipy, but quick on a busy machine.

Scipy asks LAPACK for the inverse and the condition of thousands of 3 x 3 matrices one by one, and the threads of some
builds of it then wait for each other: for seconds, where milliseconds would do. So the inverses are handed to it.

Which tetrahedron a point lies in is for scipy to say. On a grid some overlap, and the artifact's numbers depend on it.

Legend: P points, S tetrahedra, V values at a point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

#: Scipy's own bound: tetrahedra with a worse condition are too flat to contain anything.
_FLAT = 1000 * np.finfo(np.float64).eps


class Surface:
    """Values between points. Raises scipy's QhullError if the points do not span a space."""

    def __init__(self, points_P3: Floats, values_PV: Floats) -> None:
        # Imported here: they are slow to import, and many runs never need them.
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import Delaunay

        mesh = Delaunay(points_P3)
        mesh._transform = _transform(points_P3[mesh.simplices])  # where scipy keeps them once they are known
        self._interpolate: Any = LinearNDInterpolator(mesh, values_PV)

    def at(self, point_3: ArrayLike) -> Floats | None:
        """Values at a point; None outside of all that is known."""
        values_V: Floats = self._interpolate([point_3])[0]
        return None if np.isnan(values_V).any() else values_V


def _transform(corners_S43: Floats) -> Floats:
    """The affine maps to barycentric coordinates as `Delaunay.transform` has them: [S, 4, 3], NaN where flat."""
    last_S3 = corners_S43[:, 3]
    edges_S33 = corners_S43[:, :3] - last_S3[:, None]
    a_S3, b_S3, c_S3 = np.moveaxis(edges_S33, 1, 0)
    # Row k of the inverse of the matrix whose columns are the edges.
    rows_S33 = np.stack([np.cross(b_S3, c_S3), np.cross(c_S3, a_S3), np.cross(a_S3, b_S3)], axis=1)
    volume_S = (a_S3 * rows_S33[:, 0]).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse_S33 = rows_S33 / volume_S[:, None, None]
        worst_S = np.abs(edges_S33).sum(axis=2).max(axis=1) * np.abs(inverse_S33).sum(axis=1).max(axis=1)
    maps_S43 = np.concatenate([inverse_S33, last_S3[:, None]], axis=1)
    maps_S43[~(worst_S < 1.0 / _FLAT)] = np.nan
    return maps_S43
