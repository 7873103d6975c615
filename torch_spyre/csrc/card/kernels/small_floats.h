// SPDX-License-Identifier: Apache-2.0
// 8-bit floats as fp32, 16 lanes at a time.
#pragma once
#include "scalar_formats.h"
#include "simd.h"

SPYRE_ISA_BEGIN

/// Sixteen codes (0..255) of an 8-bit float. The rules of small_decode.
template <const SmallFloat& f>
SPYRE_INLINE F decode_small(I code) {
  constexpr int kShift = 23 - f.mantissa_bits;
  const I magnitude = and_(code, splat_i(0x7F)), sign = shl<24>(and_(code, splat_i(0x80)));
  const F tiny = mul(from_int(magnitude), splat(float_of(static_cast<uint32_t>(128 - f.bias - f.mantissa_bits) << 23)));
  const I normal = add(shl<kShift>(magnitude), splat_i((127 - f.bias) << 23));
  const I value = or_(select(lt(magnitude, splat_i(1 << f.mantissa_bits)), bits(tiny), normal), sign);
  const M nan = f.negative_zero ? eq(magnitude, splat_i(f.nan)) : eq(code, splat_i(f.nan));
  return floats(select(nan, splat_i(0x7FC00000), value));
}

SPYRE_ISA_END
