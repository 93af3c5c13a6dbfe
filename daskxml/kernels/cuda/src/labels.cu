// A block of labels, label-major: (labels, stride), one contiguous row of `stride` numbers for each
// label, of which the first `rows` belong to the batch and the others are ignored.
// Sums over labels are formed by tiles of 32 rows and chunks of labels, then over the chunks.

// A logit or its gradient is stored as float32, or as the bits of a float16.
__device__ inline float load_logit(float x) { return x; }
__device__ inline float load_logit(unsigned short x) { return half_value(x); }
__device__ inline void store_logit(float* at, float value) { *at = value; }
__device__ inline void store_logit(unsigned short* at, float value) { *at = half_bits(value); }

// As many logits as a thread reads at once, of neighbouring rows: 4 bytes, 128 for a warp.
__device__ inline void load_rows(const float* at, float* out) { out[0] = *at; }
__device__ inline void load_rows(const unsigned short* at, float* out) {
    unsigned two = *(const unsigned*)at;
    out[0] = half_value((unsigned short)(two & 0xffffu));
    out[1] = half_value((unsigned short)(two >> 16));
}

// K labels more in the maxima and sums of R rows; `at` and `lift` are where their logits and biases
// begin, `step` and `high` apart.
template <class T, int R, int K>
__device__ inline void add_labels(
    float* top, float* sum, const T* at, const float* lift, int64 step, int high) {
    float batch[K][R];
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        load_rows(at, batch[k]);
        at += step;
    }
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        float bias = lift[k * high];
        #pragma unroll
        for (int r = 0; r < R; ++r) batch[k][r] += bias;
    }
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        float higher = top[r], more = 0.0f;
        #pragma unroll
        for (int k = 0; k < K; ++k) higher = fmaxf(higher, batch[k][r]);
        #pragma unroll
        for (int k = 0; k < K; ++k) more += __expf(batch[k][r] - higher);  // NaN stays
        sum[r] = sum[r] * __expf(top[r] - higher) + more;
        top[r] = higher;
    }
}

// Maximum and sum of a chunk: both (chunks, rows). A block is R x 32 rows x 8 labels at a time.
template <class T>
__device__ void softmax_parts_of(
    float* tops, float* sums, const T* logits, const float* bias,
    int64 labels, int64 rows, int64 stride, int64 chunk) {
    const int R = 4 / sizeof(T), K = 8;  // rows of a thread, and labels that it loads at once
    __shared__ float top_of[R][256], sum_of[R][256];
    int64 row = R * (blockIdx.x * (int64)blockDim.x + threadIdx.x);
    int64 first = blockIdx.y * chunk + threadIdx.y, last = least(blockIdx.y * chunk + chunk, labels);
    int high = blockDim.y, own = threadIdx.y * blockDim.x + threadIdx.x;
    int left = first < last && row < rows ? (int)((last - first + high - 1) / high) : 0;
    const T* at = logits + first * stride + row;
    const float* lift = bias + first;
    float top[R], sum[R];
    #pragma unroll
    for (int r = 0; r < R; ++r) top[r] = -INF, sum[r] = 0.0f;
    for (; left >= K; left -= K) {
        add_labels<T, R, K>(top, sum, at, lift, high * stride, high);
        at += K * high * stride;
        lift += K * high;
    }
    for (; left > 0; --left) {
        add_labels<T, R, 1>(top, sum, at, lift, high * stride, high);
        at += high * stride;
        lift += high;
    }
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        top_of[r][own] = top[r];
        sum_of[r][own] = sum[r];
    }
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        if (threadIdx.y > 0 || row + r >= rows) return;
        for (int y = 1; y < high; ++y) {
            int place = y * blockDim.x + own;
            float other = top_of[r][place], more = sum_of[r][place];
            if (more == 0.0f) continue;  // without labels
            if (other <= top[r]) {
                sum[r] += more * expf(other - top[r]);
            } else {
                sum[r] = sum[r] * expf(top[r] - other) + more;
                top[r] = other;
            }
        }
        tops[blockIdx.y * rows + row + r] = top[r];
        sums[blockIdx.y * rows + row + r] = sum[r];
    }
}

KERNEL softmax_parts(
    float* tops, float* sums, const float* logits, const float* bias,
    int64 labels, int64 rows, int64 stride, int64 chunk) {
    softmax_parts_of(tops, sums, logits, bias, labels, rows, stride, chunk);
}

KERNEL softmax_parts_half(
    float* tops, float* sums, const unsigned short* logits, const float* bias,
    int64 labels, int64 rows, int64 stride, int64 chunk) {
    softmax_parts_of(tops, sums, logits, bias, labels, rows, stride, chunk);
}

// Chunks into the running peak and total of every row; a block is 32 rows x 8 chunks at a time.
KERNEL softmax_merge(
    float* peak, double* total, const float* tops, const float* sums, int chunks, int64 rows) {
    __shared__ float top_of[8][32];
    __shared__ double sum_of[8][32];
    int64 row = blockIdx.x * 32 + threadIdx.x;
    float top = row < rows ? peak[row] : 0.0f;
    double sum = 0.0;
    for (int c = threadIdx.y; c < chunks && row < rows; c += 8) {
        float other = tops[c * rows + row];
        top = other <= top ? top : other;
    }
    top_of[threadIdx.y][threadIdx.x] = top;
    __syncthreads();
    for (int y = 0; y < 8; ++y) {
        float other = top_of[y][threadIdx.x];
        top = other <= top ? top : other;
    }
    for (int c = threadIdx.y; c < chunks && row < rows; c += 8)
        sum += (double)sums[c * rows + row] * expf(tops[c * rows + row] - top);
    sum_of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || row >= rows) return;
    sum += total[row] * expf(peak[row] - top);
    for (int y = 1; y < 8; ++y) sum += sum_of[y][threadIdx.x];
    peak[row] = top;
    total[row] = sum;
}

// shift = peak + log(total) - log(weight)
KERNEL softmax_shift(
    float* out, const float* peak, const double* total, const float* weight, int64 rows) {
    EACH(r, rows) out[r] = peak[r] + (log(total[r]) - log((double)weight[r]));
}

// logits = exp(logits + bias - shift), and the sum over each label's row: one warp for a label.
template <class T>
__device__ void softmax_gradient_of(
    T* __restrict__ delta, const float* __restrict__ bias, const float* __restrict__ shift,
    float* __restrict__ row_sums, int64 labels, int64 rows, int64 stride) {
    const int K = 16 / sizeof(T);  // loads before stores
    int64 label = blockIdx.x * 8ll + threadIdx.x / 32;
    if (label >= labels) return;
    float sum = 0.0f, lift = bias[label];
    T* __restrict__ row = delta + label * stride;
    for (int64 start = threadIdx.x % 32; start < rows; start += 32 * K) {
        T batch[K];
        #pragma unroll
        for (int k = 0; k < K; ++k) batch[k] = start + 32 * k < rows ? row[start + 32 * k] : T(0);
        #pragma unroll
        for (int k = 0; k < K; ++k) {
            int64 r = start + 32 * k;
            if (r >= rows) continue;
            float value = __expf(load_logit(batch[k]) + lift - shift[r]);
            store_logit(row + r, value);
            sum += value;
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) row_sums[label] = sum;
}

KERNEL softmax_gradient(
    float* delta, const float* bias, const float* shift, float* row_sums, int64 labels,
    int64 rows, int64 stride) {
    softmax_gradient_of(delta, bias, shift, row_sums, labels, rows, stride);
}

KERNEL softmax_gradient_half(
    unsigned short* delta, const float* bias, const float* shift, float* row_sums, int64 labels,
    int64 rows, int64 stride) {
    softmax_gradient_of(delta, bias, shift, row_sums, labels, rows, stride);
}

KERNEL merge_softmax(
    float* peak, double* total, const float* peaks, const double* totals, int parts, int64 rows) {
    EACH(r, rows) {
        float top = peaks[r];
        double sum = totals[r];
        for (int part = 1; part < parts; ++part) {
            float other = peaks[part * rows + r], higher = other <= top ? top : other;
            sum = sum * expf(top - higher) + totals[part * rows + r] * expf(other - higher);
            top = higher;
        }
        peak[r] = top;
        total[r] = sum;
    }
}

KERNEL softmax_losses(
    double* out, const float* peak, const double* total, const double* partial_targets,
    const float* lengths, int parts, int64 rows) {
    EACH(r, rows) {
        double target = 0.0;
        for (int part = 0; part < parts; ++part) target += partial_targets[part * rows + r];
        out[r] = lengths[r] > 0.0f ? peak[r] + log(total[r]) - target / lengths[r] : 0.0;
    }
}

KERNEL target_weights(
    float* row_weight, float* label_weight, const float* lengths, float factor, int each_row,
    int64 rows) {
    EACH(r, rows) {
        row_weight[r] = each_row && lengths[r] == 0.0f ? 0.0f : factor;
        float share = lengths[r] > 1.0f ? lengths[r] : 1.0f;
        label_weight[r] = each_row ? row_weight[r] / share : factor;
    }
}

// logits = weight * sigmoid(logits + bias), and the sum over each label's row.
template <class T>
__device__ void sigmoid_labels_of(
    T* logits, const float* bias, float weight, float* row_sums, int64 labels, int64 rows,
    int64 stride) {
    int64 label = blockIdx.x * 8ll + threadIdx.x / 32;
    if (label >= labels) return;
    float sum = 0.0f, shift = bias[label];
    T* row = logits + label * stride;
    for (int64 r = threadIdx.x % 32; r < rows; r += 32) {
        float z = load_logit(row[r]) + shift, small = expf(-fabsf(z));
        float value = (z <= 0.0f ? small : 1.0f) * (weight / (1.0f + small));
        store_logit(row + r, value);
        sum += value;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) row_sums[label] = sum;
}

KERNEL sigmoid_labels(
    float* logits, const float* bias, float weight, float* row_sums, int64 labels, int64 rows,
    int64 stride) {
    sigmoid_labels_of(logits, bias, weight, row_sums, labels, rows, stride);
}

KERNEL sigmoid_labels_half(
    unsigned short* logits, const float* bias, float weight, float* row_sums, int64 labels,
    int64 rows, int64 stride) {
    sigmoid_labels_of(logits, bias, weight, row_sums, labels, rows, stride);
}

// log(1 + exp(logits + bias)) over a chunk of labels, (chunks, rows): 32 rows x 8 labels.
template <class T>
__device__ void softplus_parts_of(
    double* parts, const T* logits, const float* bias, int64 labels, int64 rows,
    int64 stride, int64 chunk) {
    __shared__ double part_of[8][32];
    int64 row = blockIdx.x * 32 + threadIdx.x;
    int64 first = blockIdx.y * chunk, last = least(first + chunk, labels);
    double sum = 0.0;
    for (int64 start = first; start < last && row < rows; start += 128) {
        float batch = 0.0f;  // 16 labels in float: float64 is slow
        for (int64 l = start + threadIdx.y; l < least(start + 128, last); l += 8) {
            float z = load_logit(logits[l * stride + row]) + bias[l];
            batch += log1pf(expf(-fabsf(z))) + (z > 0.0f ? z : 0.0f);
            if (z != z) batch = z;  // comparisons lose NaN
        }
        sum += batch;
    }
    part_of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || row >= rows) return;
    for (int y = 1; y < 8; ++y) sum += part_of[y][threadIdx.x];
    parts[blockIdx.y * rows + row] = sum;
}

KERNEL softplus_parts(
    double* parts, const float* logits, const float* bias, int64 labels, int64 rows,
    int64 stride, int64 chunk) {
    softplus_parts_of(parts, logits, bias, labels, rows, stride, chunk);
}

KERNEL softplus_parts_half(
    double* parts, const unsigned short* logits, const float* bias, int64 labels, int64 rows,
    int64 stride, int64 chunk) {
    softplus_parts_of(parts, logits, bias, labels, rows, stride, chunk);
}

// out += the sum over chunks; a block is 32 rows x 8 chunks at a time.
KERNEL add_parts(double* out, const double* parts, int chunks, int64 rows) {
    __shared__ double part_of[8][32];
    int64 row = blockIdx.x * 32 + threadIdx.x;
    double sum = 0.0;
    for (int c = threadIdx.y; c < chunks && row < rows; c += 8) sum += parts[c * rows + row];
    part_of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || row >= rows) return;
    for (int y = 1; y < 8; ++y) sum += part_of[y][threadIdx.x];
    out[row] += sum;
}
