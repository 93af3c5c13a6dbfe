// Flat vectors: the arithmetic of merging. Each block forms one double; the host adds those.

KERNEL scale(float* out, const float* x, float factor, int64 n) {
    EACH(i, n) out[i] = factor * x[i];
}

// Alpha and beta of a product.
KERNEL set_factors(float* out, const float* place, float factor, float beta) {
    if (threadIdx.x == 0) out[0] = rate_of(place, factor), out[1] = beta;
}

KERNEL fill_uint16(unsigned short* out, unsigned short value, int64 n) {
    EACH(i, n) out[i] = value;
}

KERNEL fill_uint32(unsigned* out, unsigned value, int64 n) {
    EACH(i, n) out[i] = value;
}

KERNEL fill_uint64(uint64* out, uint64 value, int64 n) {
    EACH(i, n) out[i] = value;
}

KERNEL add_scaled(float* out, const float* x, float factor, int64 n) {
    EACH(i, n) out[i] += factor * x[i];
}

KERNEL add_change(float* out, const float* current, const float* previous, float gamma, int64 n) {
    EACH(i, n) out[i] += gamma * (current[i] - previous[i]);
}

KERNEL add_two(float* out, const float* x, float a, const float* y, float b, int64 n) {
    EACH(i, n) out[i] += a * x[i] + b * y[i];
}

KERNEL axpby(float* out, const float* x, float a, const float* y, float b, int64 n) {
    EACH(i, n) out[i] = a * x[i] + b * y[i];
}

struct alignas(16) FourFloats { float of[4]; };
struct alignas(8) FourHalves { unsigned short of[4]; };

// Four at a time where both are aligned: all weights are converted in each step.
KERNEL to_float16(unsigned short* out, const float* x, float factor, int64 n) {
    bool is_aligned = (uint64)x % sizeof(FourFloats) == 0 && (uint64)out % sizeof(FourHalves) == 0;
    int64 fours = is_aligned ? n / 4 : 0, done = 4 * fours;
    EACH(i, fours) {
        FourFloats from = ((const FourFloats*)x)[i];
        FourHalves to;
        for (int k = 0; k < 4; ++k) to.of[k] = half_bits(factor * from.of[k]);
        ((FourHalves*)out)[i] = to;
    }
    EACH(i, n - done) out[done + i] = half_bits(factor * x[done + i]);
}

KERNEL from_float16(float* out, const unsigned short* x, float factor, int64 n) {
    EACH(i, n) out[i] = factor * half_value(x[i]);
}

// The nearest bfloat16, ties to even: the upper half of a float's bits. NaN stays NaN.
KERNEL to_bfloat16(unsigned short* out, const float* x, float factor, int64 n) {
    EACH(i, n) {
        unsigned bits = __float_as_uint(factor * x[i]);
        bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        out[i] = is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    }
}

KERNEL from_bfloat16(float* out, const unsigned short* x, float factor, int64 n) {
    EACH(i, n) out[i] = factor * __uint_as_float((unsigned)x[i] << 16);
}

KERNEL sum_parts(double* parts, const double* x, int64 n) {
    double sum = 0.0;
    EACH(i, n) sum += x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// out += factor * sum of x, by one block.
KERNEL add_sum(double* out, const double* x, double factor, int64 n) {
    double sum = 0.0;
    for (int64 i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out += factor * sum;
}

KERNEL square_parts(double* parts, const float* x, int64 n) {
    double sum = 0.0;
    EACH(i, n) sum += (double)x[i] * x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// parts (3, blocks): x . y, x . x, y . y
KERNEL dot_parts(double* parts, const float* x, const float* y, int64 n) {
    double xy = 0.0, xx = 0.0, yy = 0.0;
    EACH(i, n) {
        double a = x[i], b = y[i];
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    xy = block_sum(xy);
    xx = block_sum(xx);
    yy = block_sum(yy);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = xy;
        parts[gridDim.x + blockIdx.x] = xx;
        parts[2 * gridDim.x + blockIdx.x] = yy;
    }
}

// The largest magnitude's bits: ordered as the numbers, then infinity, then NaN.
KERNEL largest_word(unsigned* word, const float* x, int64 n) {
    unsigned best = 0;
    EACH(i, n) {
        unsigned magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
        if (magnitude > best) best = magnitude;
    }
    atomicMax(word, best);  // the same in any order
}
