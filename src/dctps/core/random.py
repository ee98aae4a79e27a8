"""Random numbers that are the same for the same seed on every platform and in every version of the libraries.

Libraries change how they turn random words into normal numbers, and their logarithms differ in the last bit from one
processor to the next. A file that stores a seed cannot rely on them. Everything here follows from the raw stream of
numpy's PCG64, which numpy guarantees, by operations that IEEE 754 rounds correctly: + - * / and the square root.
"""

import math

import numpy as np
import numpy.typing as npt

from dctps.core.support import Int64, check_seed, derive_seed

Float64 = npt.NDArray[np.float64]


class Stream:
    """A stream of random words that `seed` and `name` determine; each draw continues where the last one ended.

    >>> Stream(0, "example").normals(3).round(4).tolist()
    [-1.0378, 0.6038, -0.8368]
    """

    def __init__(self, seed: int, name: str) -> None:
        check_seed(seed)
        self._generator = np.random.PCG64(derive_seed(seed, name))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next `count` words of 64 random bits."""
        return np.asarray(self._generator.random_raw(count), dtype=np.uint64)

    def uniforms(self, count: int) -> Float64:
        """Return uniform numbers in (0, 1]: the upper 53 bits of a word, plus one, times 2^-53."""
        return ((self.words(count) >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53

    def signs(self, count: int) -> Float64:
        """Return random signs: +1 where the lowest bit of a word is 0, -1 where it is 1."""
        return 1.0 - 2.0 * (self.words(count) & np.uint64(1)).astype(np.float64)

    def permutation(self, count: int) -> Int64:
        """Return a random permutation of range(count): the order that sorts `count` words (stable for equal words)."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def normals(self, count: int) -> Float64:
        """Return numbers from N(0, 1), drawn by Marsaglia's polar method.

        Points (u, v) of the square are drawn until enough of them lie in the circle. Each of those gives two numbers,
        u f and v f with f^2 = -2 ln(s) / s and s = u^2 + v^2; an odd `count` drops the last one. No more points are
        drawn than may be needed, so the numbers do not depend on the size of a batch.
        """
        parts, missing = [np.empty(0)], count
        while missing > 0:
            points = 2.0 * self.uniforms(2 * ((missing + 1) // 2)).reshape(-1, 2) - 1.0
            squares = points[:, 0] * points[:, 0] + points[:, 1] * points[:, 1]
            inside = (squares > 0) & (squares < 1)
            points, squares = points[inside], squares[inside]
            parts.append((points * np.sqrt(-2.0 * log(squares) / squares)[:, None]).ravel())
            missing -= len(parts[-1])
        return np.concatenate(parts)[:count]

    def successes(self, trials: int, density: float) -> Int64:
        """Return the sorted numbers of the trials that succeed, each independently with probability `density`.

        Each word gives a uniform u, and floor(ln(u) / ln(1 - density)) failures precede the next success. The memory
        is O(successes).
        """
        if density >= 1:
            return np.arange(trials, dtype=np.int64)
        parts, last = [np.empty(0, dtype=np.int64)], -1
        failure = log(np.array([1.0 - density]))
        while last < trials - 1:
            count = 16 + int((trials - 1 - last) * density)
            gaps = np.floor(log(self.uniforms(count)) / failure).astype(np.int64)
            parts.append(last + np.cumsum(gaps + 1))
            last = int(parts[-1][-1])
        drawn = np.concatenate(parts)
        return drawn[drawn < trials]


def log(x: Float64) -> Float64:
    """Return the natural logarithm, exact up to one or two units in the last place.

    With x = 2^e m and m within a factor sqrt(2) of one, ln x = e ln 2 + ln m, where
    ln m = 2 (s + s^3/3 + s^5/5 + ...) and s = (m - 1) / (m + 1). Since |s| < 0.172, eleven terms are enough.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(small, 2.0 * mantissa, mantissa), exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z, series = s * s, np.zeros_like(s)
    for k in reversed(range(11)):
        series = series * z + 2.0 / (2 * k + 1)
    return s * series + exponent * math.log(2)


def total(x: Float64) -> float:
    """Return the sum, added term by term from the first to the last; `np.sum` does not promise its order."""
    return float(np.add.accumulate(x)[-1])
