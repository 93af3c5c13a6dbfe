// Optimizers: one pass over weights, gradient and moments, a thread for each number.
// `ids` are the rows of a gradient, or null where it is all; `waits[i]` says that row i of the
// gradient is left alone, or is null.

// Where number i of the gradient lies among the weights, or -1 if its row waits.
__device__ inline int64 place_of(int64 i, int width, const int* ids, const unsigned char* waits) {
    if (!ids && !waits) return i;
    int64 row = i / width;
    if (waits && waits[row]) return -1;
    return ids ? (int64)ids[row] * width + i % width : i;
}

// A weight; a narrow one (bfloat16) is the upper half of a float's bits.
__device__ inline float load(const float* weight, int64 at) { return weight[at]; }
__device__ inline float load(const unsigned short* weight, int64 at) {
    return __uint_as_float((unsigned)weight[at] << 16);
}

// A narrow weight is rounded up or down by chance, in proportion, so that steps that are smaller
// than half its last place count on average. `noise` is a stream of chance.
__device__ inline void store(float* weight, int64 at, float value, uint64 noise) {
    weight[at] = value;
}
__device__ inline void store(unsigned short* weight, int64 at, float value, uint64 noise) {
    unsigned bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x7f800000u) bits += (unsigned)(hash64(noise, at) >> 48);
    else if (magnitude > 0x7f800000u) bits |= 0x00400000u;  // NaN stays one
    weight[at] = bits >> 16;
}

// Which rows are zero throughout, or are not there: one warp for a row; a NaN is not zero.
KERNEL find_waiting(
    unsigned char* waits, const float* grad, const int* live, int first, int width, int64 count) {
    int64 row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= count) return;
    bool is_there = !live || first + row < *live;
    int is_used = 0;
    for (int c = threadIdx.x % 32; c < width && is_there; c += 32)
        is_used |= grad[row * width + c] != 0.0f;
    is_used = __any_sync(ALL_LANES, is_used);
    if (threadIdx.x % 32 == 0) waits[row] = !is_used;
}

template <class W>
__device__ inline void step_sgd(
    W* weight, const float* grad, const int* ids, const unsigned char* waits, float scale,
    int width, int64 n, uint64 noise, float lr, float keep) {
    EACH(i, n) {
        int64 at = place_of(i, width, ids, waits);
        if (at >= 0) store(weight, at, keep * load(weight, at) - lr * (scale * grad[i]), noise);
    }
}

template <class W>
__device__ inline void step_momentum(
    W* weight, float* buffer, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep, float rate,
    int nesterov) {
    EACH(i, n) {
        int64 at = place_of(i, width, ids, waits);
        if (at < 0) continue;
        float slope = scale * grad[i], held = rate * buffer[at] + slope;
        buffer[at] = held;
        float move = nesterov ? slope + rate * held : held;
        store(weight, at, keep * load(weight, at) - lr * move, noise);
    }
}

template <class W>
__device__ inline void step_adam(
    W* weight, float* first, float* second, const float* grad, const int* ids,
    const unsigned char* waits, float scale, int width, int64 n, uint64 noise, float lr,
    float keep, float beta1, float rest1, float beta2, float rest2, float root, float epsilon) {
    EACH(i, n) {
        int64 at = place_of(i, width, ids, waits);
        if (at < 0) continue;
        float slope = scale * grad[i];
        float mean = beta1 * first[at] + rest1 * slope;
        float square = beta2 * second[at] + rest2 * (slope * slope);
        first[at] = mean;
        second[at] = square;
        float move = mean / (root * sqrtf(square) + epsilon);
        store(weight, at, keep * load(weight, at) - lr * move, noise);
    }
}

KERNEL sgd(
    float* weight, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep) {
    step_sgd(weight, grad, ids, waits, scale, width, n, noise, lr, keep);
}

KERNEL sgd_narrow(
    unsigned short* weight, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep) {
    step_sgd(weight, grad, ids, waits, scale, width, n, noise, lr, keep);
}

KERNEL momentum(
    float* weight, float* buffer, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep, float rate,
    int nesterov) {
    step_momentum(weight, buffer, grad, ids, waits, scale, width, n, noise, lr, keep,
        rate, nesterov);
}

KERNEL momentum_narrow(
    unsigned short* weight, float* buffer, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep, float rate,
    int nesterov) {
    step_momentum(weight, buffer, grad, ids, waits, scale, width, n, noise, lr, keep,
        rate, nesterov);
}

KERNEL adam(
    float* weight, float* first, float* second, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep, float beta1,
    float rest1, float beta2, float rest2, float root, float epsilon) {
    step_adam(weight, first, second, grad, ids, waits, scale, width, n, noise, lr,
        keep, beta1, rest1, beta2, rest2, root, epsilon);
}

KERNEL adam_narrow(
    unsigned short* weight, float* first, float* second, const float* grad, const int* ids, const unsigned char* waits,
    float scale, int width, int64 n, uint64 noise, float lr, float keep, float beta1,
    float rest1, float beta2, float rest2, float root, float epsilon) {
    step_adam(weight, first, second, grad, ids, waits, scale, width, n, noise, lr,
        keep, beta1, rest1, beta2, rest2, root, epsilon);
}

// Moments, and the squares of each row's weights and update, (2, count): one warp for a row.
KERNEL lamb_moments(
    double* norms, const float* weight, float* first, float* second, const float* grad,
    const int* ids, const unsigned char* waits, float scale, int width, int64 count,
    float factor, float decay, float beta1, float rest1, float beta2, float rest2, float root,
    float epsilon) {
    int64 row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= count) return;
    double weights = 0.0, updates = 0.0;
    bool moves = !(waits && waits[row]);
    for (int c = threadIdx.x % 32; c < width && moves; c += 32) {
        int64 at = (ids ? (int64)ids[row] : row) * width + c;
        float slope = scale * grad[row * width + c];
        float mean = beta1 * first[at] + rest1 * slope;
        float square = beta2 * second[at] + rest2 * (slope * slope);
        first[at] = mean;
        second[at] = square;
        float move = factor * mean / (root * sqrtf(square) + epsilon) + decay * weight[at];
        weights += (double)weight[at] * weight[at];
        updates += (double)move * move;
    }
    weights = warp_sum(weights);
    updates = warp_sum(updates);
    if (threadIdx.x % 32 == 0) {
        norms[row] = weights;
        norms[count + row] = updates;
    }
}

// ||weights|| / ||update|| from sums (2, blocks) of their rows' squares; 1 where one is zero.
KERNEL lamb_trust(double* trust, const double* parts, int blocks) {
    double weights = 0.0, updates = 0.0;
    for (int b = threadIdx.x; b < blocks; b += blockDim.x) {
        weights += parts[b];
        updates += parts[blocks + b];
    }
    weights = block_sum(weights);
    updates = block_sum(updates);
    if (threadIdx.x == 0)
        *trust = weights > 0.0 && updates > 0.0 ? sqrt(weights / updates) : 1.0;
}

KERNEL lamb(
    float* weight, const float* first, const float* second, const int* ids,
    const unsigned char* waits, int width, int64 n, double lr, const double* trust, float factor,
    float decay, float root, float epsilon) {
    float rate = lr * *trust;
    EACH(i, n) {
        int64 at = place_of(i, width, ids, waits);
        if (at < 0) continue;
        float move = factor * first[at] / (root * sqrtf(second[at]) + epsilon);
        weight[at] -= rate * (move + decay * weight[at]);
    }
}
