// The nearest float16, ties to even. A GPU has an instruction for it, and for the way back.
#ifdef __CUDACC_RTC__

__device__ inline unsigned short half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ inline float half_value(unsigned short half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

#else

__device__ inline unsigned short half_bits(float value) {
    unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u;
    unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // not a number
    if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // 65536 and more: infinity
    if (magnitude < 0x38800000u) {  // subnormal: the addition rounds to multiples of 2**-24
        float shifted = __uint_as_float(magnitude) + 0.5f;
        return sign | (__float_as_uint(shifted) - 0x3f000000u);
    }
    unsigned is_odd = (magnitude >> 13) & 1u;
    magnitude += 0xc8000fffu + is_odd;  // the exponent's new bias, and half a unit
    return sign | (magnitude >> 13);
}

__device__ inline float half_value(unsigned short half) {
    unsigned magnitude = half & 0x7fffu, bits = magnitude << 13;
    if (magnitude >= 0x7c00u) bits |= 0x7f800000u;
    else if (magnitude >= 0x0400u) bits += 0x38000000u;
    else bits = __float_as_uint(magnitude * 5.9604644775390625e-8f);  // 2**-24
    return __uint_as_float(bits | (unsigned)(half & 0x8000u) << 16);
}

#endif
