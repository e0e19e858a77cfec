"""Coefficients of the polynomials by which every back end computes functions, and their limits.

Highest power first. The name beside each says where it comes from: Cephes is Stephen Moshier's
library of mathematical functions, whose file is named.
"""

from __future__ import annotations

SMALLEST = 1.17549435e-38
"""The smallest normal f32."""
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts, the first of few bits, so that a small whole number times it is exact
(Cephes, `expf` and `logf`)."""
LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
       -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
"""Of (log(1 + x) - x + x^2 / 2) / x^3, from sqrt(1/2) - 1 to sqrt(2) - 1 (Cephes, `logf`)."""
PI_HALVES = (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8)
"""Parts of pi / 2; the first two are of so few bits that their products with whole numbers below
8192 are exact (Cephes, `sinf`)."""
SINE = (2.75573e-6, -1.98412698e-4, 8.33333333e-3, -1.66666667e-1)
COSINE = (-2.75573e-7, 2.48015873e-5, -1.38888889e-3, 4.16666667e-2, -0.5, 1.0)
"""The series of Taylor, in x^2: of (sin(x) - x) / x^3, and of cos(x)."""
TANH_LIMIT = 7.90531110763549805
"""From here on tanh is 1 in f32."""
TANH_OVER = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
             5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
             4.89352455891786e-03)  # what is divided by the next one
TANH_UNDER = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
              4.89352518554385e-03)
"""Approximation of tanh within the limit: x times a polynomial of x^2 over another one (as in
Eigen's `ptanh`)."""
