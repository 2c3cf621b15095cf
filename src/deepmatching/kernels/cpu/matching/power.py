"""Powers and exponentials with a relative error of a few 10⁻⁷, made of operations that the compiler can vectorise."""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from deepmatching.kernels.cpu.compilation import helper

_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST, _HIGHEST = np.float32(-127), np.float32(128)  # exponents of 0 and of ∞
_ROUNDING = np.float32(1.5 * 2**23)  # adding it rounds to an integer: no fraction fits beside it

#: 2^f = Σ (f ln 2)^n / n!; for |f| ≤ 1/2 the first term left out, n = 8, is 5·10⁻⁹.
_E1, _E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 8))

#: log₂ m = 2/ln 2 · (s + s³/3 + s⁵/5 + …) with s = (m − 1)/(m + 1), |s| < 0.172 for m between √½ and √2.
_L1, _L3, _L5, _L7, _L9 = (np.float32(2 / math.log(2) / n) for n in (1, 3, 5, 7, 9))

_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_MANTISSA_BITS = np.int32(23)
_LEADING_BITS = np.int32(-4096)  # all but the last 12 of a float's 23 mantissa bits
_BIAS = np.int32(127)


def _reinterpretation(source: Any, result: Any, llvm_type: Any) -> Any:
    """Return a function that takes the bits of one type for another's."""

    def typed(context: Any, value: Any) -> tuple[Any, Any]:
        return result(source), lambda _, builder, __, arguments: builder.bitcast(arguments[0], llvm_type)

    return intrinsic(typed)


_bits = _reinterpretation(types.float32, types.int32, ir.IntType(32))
_float = _reinterpretation(types.int32, types.float32, ir.FloatType())


@helper
def exp2(whole, fraction):
    """Return 2^(whole + fraction) for a whole number and a small fraction; 0 and ∞ beyond float32."""
    carry = (fraction + _ROUNDING) - _ROUNDING
    f = fraction - carry
    n = min(max(whole + carry, _LOWEST), _HIGHEST)
    series = _ONE + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * (_E5 + f * (_E6 + f * _E7))))))
    return series * _float((np.int32(n) + _BIAS) << _MANTISSA_BITS)


@helper
def raised(value, exponent):
    """Return value^ν for value ≥ 0, ν = ``exponent`` > 0.

    With value = 2^e m, value^ν = 2^(ν e + ν log₂ m). The whole part of ν e is split off before the rest is added up,
    so that small values are as precise as large ones; ν's leading bits alone make an exact product with e.
    """
    bits = _bits(value)
    e_bits = np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
    m = _float(bits - (e_bits << _MANTISSA_BITS))
    s = (m - _ONE) / (m + _ONE)
    square = s * s
    logarithm = s * (_L1 + square * (_L3 + square * (_L5 + square * (_L7 + square * _L9))))

    e = np.float32(e_bits)
    leading = _float(_bits(exponent) & _LEADING_BITS)
    product = leading * e
    whole = (product + _ROUNDING) - _ROUNDING
    result = exp2(whole, (product - whole) + ((exponent - leading) * e + exponent * logarithm))
    return result if value > _ZERO else _ZERO
