"""Universal Transverse Mercator coordinates, with the series of Krüger up to the third order.

The error is below 1 mm within a zone (C. F. F. Karney, Transverse Mercator with an accuracy of a
few nanometers, Journal of Geodesy 85, 2011, equations 7 to 11 and 35).
"""

import numpy as np

SEMI_MAJOR_M = 6_378_137.0  # WGS 84
FLATTENING = 1 / 298.257223563
SCALE = 0.9996  # on the central meridian
FALSE_EASTING_M = 500_000.0
FALSE_NORTHING_M = 10_000_000.0  # of the southern hemisphere
ZONE_DEGREES = 6.0
MAX_LATITUDE = 84.0

_N = FLATTENING / (2 - FLATTENING)  # third flattening
_RADIUS_M = SEMI_MAJOR_M / (1 + _N) * (1 + _N**2 / 4 + _N**4 / 64)
_ALPHA = (
    _N / 2 - 2 * _N**2 / 3 + 5 * _N**3 / 16,
    13 * _N**2 / 48 - 3 * _N**3 / 5,
    61 * _N**3 / 240,
)


def utm_zone(longitude: float) -> int:
    """The zone, 1 to 60, of a longitude in degrees."""
    return int((longitude + 180.0) // ZONE_DEGREES) % 60 + 1


def utm(latitude: np.ndarray, longitude: np.ndarray, zone: int, is_south: bool) -> np.ndarray:
    """Easting and northing float64 [..., 2] in metres of a zone, from degrees [...].

    Southern zones have 10,000 km added to the northing.
    """
    meridian = (zone - 1) * ZONE_DEGREES - 180.0 + ZONE_DEGREES / 2
    phi = np.radians(latitude)
    delta = np.radians(longitude - meridian)

    # The conformal latitude, then the projection of the sphere.
    eccentricity = 2 * np.sqrt(_N) / (1 + _N)
    sine = np.sin(phi)
    t = np.sinh(np.arctanh(sine) - eccentricity * np.arctanh(eccentricity * sine))
    xi = np.arctan2(t, np.cos(delta))
    eta = np.arcsinh(np.sin(delta) / np.hypot(t, np.cos(delta)))

    # From the sphere to the ellipsoid.
    north = xi.copy()
    east = eta.copy()
    for order, alpha in enumerate(_ALPHA, 1):
        north += alpha * np.sin(2 * order * xi) * np.cosh(2 * order * eta)
        east += alpha * np.cos(2 * order * xi) * np.sinh(2 * order * eta)
    scale_m = SCALE * _RADIUS_M
    northing = scale_m * north + (FALSE_NORTHING_M if is_south else 0.0)
    return np.stack([FALSE_EASTING_M + scale_m * east, northing], -1)
