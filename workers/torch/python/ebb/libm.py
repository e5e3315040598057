"""`cos` and `pow` with the bits of FreeBSD's and musl's mathematical library, which the service computes schedules with on every host.

A platform's own may differ in the last bit. Transcribed for what a schedule needs: `cos` of 0..π, `pow` of 0..1 with whole exponents
up to 2^31. Copyright (C) 1993, 2004 by Sun Microsystems, Inc.: permission to use, copy, modify, and distribute this software is freely
granted, provided that this notice is preserved.
"""

from __future__ import annotations

import math
import struct


def _bits(x: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def _of_bits(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def _high(x: float) -> int:
    return _bits(x) >> 32


def _cut(x: float) -> float:
    """Without the low word."""
    return _of_bits(_bits(x) & 0xFFFF_FFFF_0000_0000)


def _with_high(x: float, high: int) -> float:
    return _of_bits((_bits(x) & 0xFFFF_FFFF) | ((high & 0xFFFF_FFFF) << 32))


# ---- cos

_TO_INT = 1.5 / 2.220446049250313e-16
_INV_PIO2 = 6.36619772367581382433e-01
_PIO2_1, _PIO2_1T = 1.57079632673412561417e00, 6.07710050650619224932e-11
_PIO2_2, _PIO2_2T = 6.07710050630396597660e-11, 2.02226624879595063154e-21
_PIO2_3, _PIO2_3T = 2.02226624871116645580e-21, 8.47842766036889956997e-32


def cos(x: float) -> float:
    """The cosine of an angle from 0 to π."""
    high = _high(x)
    if high <= 0x3FE921FB:
        return 1.0 if high < 0x3E46A09E else _kernel_cos(x, 0.0)
    quadrant, y0, y1 = _reduced(x, high)
    if quadrant == 0:
        return _kernel_cos(y0, y1)
    return -_kernel_sin(y0, y1) if quadrant == 1 else -_kernel_cos(y0, y1)


def _reduced(x: float, high: int) -> tuple[int, float, float]:
    if high & 0xFFFFF == 0x921FB:
        return _reduced_near_a_multiple(x, high)
    quadrant = 1 if high <= 0x4002D97C else 2
    z = x - quadrant * _PIO2_1
    y0 = z - quadrant * _PIO2_1T
    return quadrant, y0, (z - y0) - quadrant * _PIO2_1T


def _reduced_near_a_multiple(x: float, high: int) -> tuple[int, float, float]:
    multiple = (x * _INV_PIO2 + _TO_INT) - _TO_INT
    r, w = x - multiple * _PIO2_1, multiple * _PIO2_1T
    y0 = r - w
    exponent = high >> 20
    if exponent - ((_bits(y0) >> 52) & 0x7FF) > 16:
        t, w = r, multiple * _PIO2_2
        r = t - w
        w = multiple * _PIO2_2T - ((t - r) - w)
        y0 = r - w
        if exponent - ((_bits(y0) >> 52) & 0x7FF) > 49:
            t, w = r, multiple * _PIO2_3
            r = t - w
            w = multiple * _PIO2_3T - ((t - r) - w)
            y0 = r - w
    return int(multiple), y0, (r - y0) - w


def _kernel_cos(x: float, y: float) -> float:
    z = x * x
    w = z * z
    r = z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)) + w * w * (
        -2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)
    )
    half = 0.5 * z
    w = 1.0 - half
    return w + (((1.0 - w) - half) + (z * r - x * y))


def _kernel_sin(x: float, y: float) -> float:
    z = x * x
    w = z * z
    r = (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06)) + z * w * (
        -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
    )
    v = z * x
    return x - ((z * (0.5 * y - v * r) - y) - v * -1.66666666666666324348e-01)


# ---- pow

_CP, _CP_H, _CP_L = 9.61796693925975554329e-01, 9.61796700954437255859e-01, -7.02846165095275826516e-09
_LG2, _LG2_H, _LG2_L = 6.93147180559945286227e-01, 6.93147182464599609375e-01, -1.90465429995776804525e-09


def pow_whole(x: float, exponent: int) -> float:
    """`x` from 0 to 1 to a whole power from 0 to 2^31."""
    if exponent == 0 or x == 1.0:
        return 1.0
    if exponent == 1 or x == 0.0:
        return x
    if exponent == 2:
        return x * x
    y = float(exponent)
    t1, t2 = _log2(x)
    y1 = _cut(y)
    low, high = (y - y1) * t1 + y * t2, y1 * t1
    z = low + high
    if z < -1075.0 or z == -1075.0 and low <= z - high:
        return 0.0
    return _exp2(high, low)


def _log2(x: float) -> tuple[float, float]:
    """In two parts."""
    n, word = 0, _high(x)
    if word < 0x00100000:
        x *= 9007199254740992.0
        n, word = -53, _high(x)
    n += (word >> 20) - 0x3FF
    j = word & 0x000FFFFF
    word = j | 0x3FF00000
    k = 0
    if j > 0x3988E:
        if j < 0xBB67A:
            k = 1
        else:
            n += 1
            word -= 0x00100000
    x = _with_high(x, word)
    base, dp_h, dp_l = (1.5, 5.84962487220764160156e-01, 1.35003920212974897128e-08) if k else (1.0, 0.0, 0.0)
    u, v = x - base, 1.0 / (x + base)
    ss = u * v
    s_h = _cut(ss)
    t_h = _with_high(0.0, ((word >> 1) | 0x20000000) + 0x00080000 + (k << 18))
    t_l = x - (t_h - base)
    s_l = v * ((u - s_h * t_h) - s_h * t_l)
    s2 = ss * ss
    r = s2 * s2 * (5.99999999999994648725e-01 + s2 * (4.28571428578550184252e-01 + s2 * (3.33333329818377432918e-01 + s2 * (
        2.72728123808534006489e-01 + s2 * (2.30660745775561754067e-01 + s2 * 2.06975017800338417784e-01)))))  # fmt: skip
    r += s_l * (s_h + ss)
    s2 = s_h * s_h
    t_h = _cut(3.0 + s2 + r)
    t_l = r - ((t_h - 3.0) - s2)
    u, v = s_h * t_h, s_l * t_h + t_l * ss
    p_h = _cut(u + v)
    p_l = v - (p_h - u)
    z_h, z_l = _CP_H * p_h, _CP_L * p_h + p_l * _CP + dp_l
    t1 = _cut(((z_h + z_l) + dp_h) + n)
    return t1, z_l - (((t1 - n) - dp_h) - z_h)


def _exp2(high: float, low: float) -> float:
    z = low + high
    word = _high(z)
    signed = word - (1 << 32) if word & 0x8000_0000 else word
    i = word & 0x7FFFFFFF
    n = 0
    if i > 0x3FE00000:
        n = signed + (0x00100000 >> ((i >> 20) - 0x3FF + 1))
        k = ((n & 0x7FFFFFFF) >> 20) - 0x3FF
        high -= _with_high(0.0, n & ~(0x000FFFFF >> k))
        n = ((n & 0x000FFFFF) | 0x00100000) >> (20 - k)
        if signed < 0:
            n = -n
    t = _cut(low + high)
    u, v = t * _LG2_H, (low - (t - high)) * _LG2 + t * _LG2_L
    z = u + v
    w = v - (z - u)
    t = z * z
    t1 = z - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * (6.61375632143793436117e-05 + t * (
        -1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))))  # fmt: skip
    r = (z * t1) / (t1 - 2.0) - (w + z * w)
    z = 1.0 - (r - z)
    word = _high(z) + (n << 20)
    return math.ldexp(z, n) if word >> 20 <= 0 else _with_high(z, word)
