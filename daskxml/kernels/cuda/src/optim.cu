// Optimizers: one pass over weights, gradient and moments, a thread for each number.
// `ids` are the rows of a gradient, or null for all; `skipped[i]` says that row i of the gradient
// is not applied, or is null.

// Where number i of the gradient lies among the weights, or -1 if its row is skipped.
__device__ inline int64 place_of(int64 i, int width, const int* ids, const unsigned char* skipped) {
    if (!ids && !skipped) return i;
    int64 row = i / width;
    if (skipped && skipped[row]) return -1;
    return ids ? (int64)ids[row] * width + i % width : i;
}

// Flags of rows that are zero throughout, or beyond the count: one warp for a row.
KERNEL find_zero_rows(
    unsigned char* skipped, const float* grad, const int* device_count, int first, int width,
    int64 count) {
    int64 row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= count) return;
    bool exists = !device_count || first + row < *device_count;
    int is_used = 0;
    for (int c = threadIdx.x % 32; c < width && exists; c += 32)
        is_used |= grad[row * width + c] != 0.0f;
    is_used = __any_sync(ALL_LANES, is_used);
    if (threadIdx.x % 32 == 0) skipped[row] = !is_used;
}

KERNEL sgd(
    float* weight, const float* grad, const int* ids, const unsigned char* skipped, float scale,
    int width, int64 n, const float* place, float factor, float keep) {
    float lr = rate_of(place, factor);
    EACH(i, n) {
        int64 at = place_of(i, width, ids, skipped);
        if (at >= 0) weight[at] = keep * weight[at] - lr * (scale * grad[i]);
    }
}

KERNEL momentum(
    float* weight, float* buffer, const float* grad, const int* ids, const unsigned char* skipped,
    float scale, int width, int64 n, float lr, float keep, float rate, int nesterov) {
    EACH(i, n) {
        int64 at = place_of(i, width, ids, skipped);
        if (at < 0) continue;
        float slope = scale * grad[i], held = rate * buffer[at] + slope;
        buffer[at] = held;
        float move = nesterov ? slope + rate * held : held;
        weight[at] = keep * weight[at] - lr * move;
    }
}

KERNEL adam(
    float* weight, float* first, float* second, const float* grad, const int* ids,
    const unsigned char* skipped, float scale, int width, int64 n, float lr, float keep,
    float beta1, float rest1, float beta2, float rest2, float root, float epsilon) {
    EACH(i, n) {
        int64 at = place_of(i, width, ids, skipped);
        if (at < 0) continue;
        float slope = scale * grad[i];
        float mean = beta1 * first[at] + rest1 * slope;
        float square = beta2 * second[at] + rest2 * (slope * slope);
        first[at] = mean;
        second[at] = square;
        float move = mean / (root * sqrtf(square) + epsilon);
        weight[at] = keep * weight[at] - lr * move;
    }
}

// The mean square of a row in the first column of `second`, and a step: one warp for a row.
KERNEL row_rms(
    float* weight, float* second, const float* grad, const int* ids, const unsigned char* skipped,
    float scale, int width, int64 count, float lr, float keep, float beta2,
    float rest2, float root, float epsilon) {
    int64 row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= count || (skipped && skipped[row])) return;
    const float* slopes = grad + row * width;
    int64 first = (ids ? (int64)ids[row] : row) * width;
    float total = 0.0f, held = second[first];
    for (int c = threadIdx.x % 32; c < width; c += 32) total += slopes[c] * slopes[c];
    total = warp_sum(total);
    float square = beta2 * held + rest2 * (scale * scale * total / width);
    float rate = lr * scale / (root * sqrtf(square) + epsilon);
    for (int c = threadIdx.x % 32; c < width; c += 32)
        weight[first + c] = keep * weight[first + c] - rate * slopes[c];
    if (threadIdx.x % 32 == 0) second[first] = square;
}

// Moments, and the squares of each row's weights and update, (2, count): one warp for a row.
KERNEL lamb_moments(
    double* norms, const float* weight, float* first, float* second, const float* grad,
    const int* ids, const unsigned char* skipped, float scale, int width, int64 count, float factor,
    float decay, float beta1, float rest1, float beta2, float rest2, float root, float epsilon) {
    int64 row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= count) return;
    double weights = 0.0, updates = 0.0;
    bool moves = !(skipped && skipped[row]);
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
    const unsigned char* skipped, int width, int64 n, double lr, const double* trust, float factor,
    float decay, float root, float epsilon) {
    float rate = lr * *trust;
    EACH(i, n) {
        int64 at = place_of(i, width, ids, skipped);
        if (at < 0) continue;
        float move = factor * first[at] / (root * sqrtf(second[at]) + epsilon);
        weight[at] -= rate * (move + decay * weight[at]);
    }
}
