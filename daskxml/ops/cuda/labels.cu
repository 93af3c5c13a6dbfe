// A block of labels, label-major: (labels, rows), one contiguous row for each label.
// Sums over labels are formed by tiles of 32 rows and chunks of labels, then over the chunks.

// Maximum and sum of a chunk: both (chunks, rows). A block is 32 rows x 8 labels at a time.
KERNEL softmax_parts(
    float* tops, float* sums, const float* logits, const float* bias,
    int64 labels, int64 rows, int64 chunk) {
    __shared__ float top_of[8][32], sum_of[8][32];
    int64 row = blockIdx.x * 32 + threadIdx.x;
    int64 first = blockIdx.y * chunk, last = least(first + chunk, labels);
    float top = -INF, sum = 0.0f;
    for (int64 start = first + threadIdx.y; start < last && row < rows; start += 32) {
        float few[4], higher = top, more = 0.0f;  // four labels: loads that do not wait for sums
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            int64 l = start + 8 * k;
            few[k] = l < last ? logits[l * rows + row] + bias[l] : -INF;
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) higher = few[k] > higher ? few[k] : higher;
        #pragma unroll
        for (int k = 0; k < 4; ++k) more += __expf(few[k] - higher);  // NaN stays
        sum = sum * __expf(top - higher) + more;
        top = higher;
    }
    top_of[threadIdx.y][threadIdx.x] = top;
    sum_of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || row >= rows) return;
    for (int y = 1; y < 8; ++y) {
        float other = top_of[y][threadIdx.x], more = sum_of[y][threadIdx.x];
        if (more == 0.0f) continue;  // it had no label
        if (other <= top) {
            sum += more * expf(other - top);
        } else {
            sum = sum * expf(top - other) + more;
            top = other;
        }
    }
    tops[blockIdx.y * rows + row] = top;
    sums[blockIdx.y * rows + row] = sum;
}

// Chunks into the running peak and total of every row; a block is 32 rows x 8 chunks at a time.
KERNEL softmax_join(
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

// logits = exp(logits + bias - peak); a block is 32 rows x 8 labels at a time.
KERNEL exponentiate(
    float* logits, const float* bias, const float* peak, int64 labels, int64 rows, int64 chunk) {
    int64 row = blockIdx.x * 32 + threadIdx.x;
    int64 first = blockIdx.y * chunk, last = least(first + chunk, labels);
    if (row >= rows) return;
    float top = peak[row];
    for (int64 l = first + threadIdx.y; l < last; l += 8)
        logits[l * rows + row] = expf(logits[l * rows + row] + bias[l] - top);
}

// shift = peak + log(total) - log(weight)
KERNEL softmax_shift(
    float* out, const float* peak, const double* total, const float* weight, int64 rows) {
    EACH(r, rows) out[r] = peak[r] + (log(total[r]) - log((double)weight[r]));
}

// logits = exp(logits + bias - shift), and the sum over each label's row: one warp for a label.
KERNEL softmax_gradient(
    float* __restrict__ delta, const float* __restrict__ bias, const float* __restrict__ shift,
    float* __restrict__ row_sums, int64 labels, int64 rows) {
    int64 label = blockIdx.x * 8ll + threadIdx.x / 32;
    if (label >= labels) return;
    float sum = 0.0f, lift = bias[label];
    float* __restrict__ row = delta + label * rows;
    #pragma unroll 4
    for (int64 r = threadIdx.x % 32; r < rows; r += 32) {
        float value = __expf(row[r] + lift - shift[r]);
        row[r] = value;
        sum += value;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) row_sums[label] = sum;
}

KERNEL merge_softmax(
    float* peak, double* total, const float* peaks, const double* totals, int lanes, int64 rows) {
    EACH(r, rows) {
        float top = peaks[r];
        double sum = totals[r];
        for (int lane = 1; lane < lanes; ++lane) {
            float other = peaks[lane * rows + r], higher = other <= top ? top : other;
            sum = sum * expf(top - higher) + totals[lane * rows + r] * expf(other - higher);
            top = higher;
        }
        peak[r] = top;
        total[r] = sum;
    }
}

KERNEL softmax_factors(
    float* out, const float* reference, const float* peak, const double* total,
    const float* weight, int64 rows) {
    EACH(r, rows) out[r] = weight[r] * expf(reference[r] - peak[r]) / total[r];
}

KERNEL softmax_losses(
    double* out, const float* peak, const double* total, const double* lane_target,
    const float* lengths, int lanes, int64 rows) {
    EACH(r, rows) {
        double target = 0.0;
        for (int lane = 0; lane < lanes; ++lane) target += lane_target[lane * rows + r];
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

// delta *= factors, and the sum over each label's row: one warp for a label, 8 to a block.
KERNEL scale_columns(
    float* delta, const float* factors, float* row_sums, int64 labels, int64 rows) {
    int64 label = blockIdx.x * 8ll + threadIdx.x / 32;
    if (label >= labels) return;
    float sum = 0.0f, *row = delta + label * rows;
    for (int64 r = threadIdx.x % 32; r < rows; r += 32) {
        row[r] *= factors[r];
        sum += row[r];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) row_sums[label] = sum;
}

// logits = weight * sigmoid(logits + bias), and the sum over each label's row.
KERNEL sigmoid_labels(
    float* logits, const float* bias, float weight, float* row_sums, int64 labels, int64 rows) {
    int64 label = blockIdx.x * 8ll + threadIdx.x / 32;
    if (label >= labels) return;
    float sum = 0.0f, shift = bias[label], *row = logits + label * rows;
    for (int64 r = threadIdx.x % 32; r < rows; r += 32) {
        float z = row[r] + shift, small = expf(-fabsf(z));
        row[r] = (z <= 0.0f ? small : 1.0f) * (weight / (1.0f + small));
        sum += row[r];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) row_sums[label] = sum;
}

// log(1 + exp(logits + bias)) over a chunk of labels, (chunks, rows): 32 rows x 8 labels.
KERNEL softplus_parts(
    double* parts, const float* logits, const float* bias, int64 labels, int64 rows,
    int64 chunk) {
    __shared__ double part_of[8][32];
    int64 row = blockIdx.x * 32 + threadIdx.x;
    int64 first = blockIdx.y * chunk, last = least(first + chunk, labels);
    double sum = 0.0;
    for (int64 start = first; start < last && row < rows; start += 128) {
        float few = 0.0f;  // 16 labels in float, so that float64 is used rarely
        for (int64 l = start + threadIdx.y; l < least(start + 128, last); l += 8) {
            float z = logits[l * rows + row] + bias[l];
            few += log1pf(expf(-fabsf(z))) + (z > 0.0f ? z : 0.0f);
            if (z != z) few = z;  // a comparison would lose it
        }
        sum += few;
    }
    part_of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || row >= rows) return;
    for (int y = 1; y < 8; ++y) sum += part_of[y][threadIdx.x];
    parts[blockIdx.y * rows + row] = sum;
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

__device__ inline int64 first_at_least(const int* indices, int64 low, int64 high, int64 wanted) {
    while (low < high) {
        int64 middle = (low + high) >> 1;
        if (indices[middle] < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}

// out[r] += the sum of logits + bias at row r's labels in the block: one warp for a row.
KERNEL target_logits(
    double* out, const float* logits, const float* bias, const int64* indptr, const int* indices,
    const int64* rows, int64 count, int64 batch_rows, int64 first_row, int64 first_label,
    int64 labels) {
    int64 i = blockIdx.x * 8ll + threadIdx.x / 32;
    if (i >= count) return;
    int64 stop = indptr[rows[i] + 1], r = first_row + i;
    int64 j = first_at_least(indices, indptr[rows[i]], stop, first_label) + threadIdx.x % 32;
    double sum = 0.0;
    for (; j < stop && indices[j] < first_label + labels; j += 32) {
        int64 label = indices[j] - first_label;
        sum += logits[label * batch_rows + r] + bias[label];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) out[r] += sum;
}

// delta -= weights at the rows' labels. Rows share labels, so that what a label loses is added up
// in whole numbers of 2**-50: the same in any order. `lost` (labels,) is 0.
KERNEL subtract_targets(
    float* delta, uint64* lost, const float* weights, const int64* indptr, const int* indices,
    const int64* rows, int64 count, int64 batch_rows, int64 first_row, int64 first_label,
    int64 labels) {
    int64 i = blockIdx.x * 8ll + threadIdx.x / 32;
    if (i >= count) return;
    int64 stop = indptr[rows[i] + 1], r = first_row + i;
    int64 j = first_at_least(indices, indptr[rows[i]], stop, first_label) + threadIdx.x % 32;
    uint64 units = (uint64)(int64)(weights[r] * 1125899906842624.0);
    for (; j < stop && indices[j] < first_label + labels; j += 32) {
        int64 label = indices[j] - first_label;
        delta[label * batch_rows + r] -= weights[r];
        atomicAdd(lost + label, units);
    }
}

// row_sums -= lost, which is 0 again.
KERNEL subtract_lost(float* row_sums, uint64* lost, int64 labels) {
    EACH(label, labels) {
        int64 units = (int64)lost[label];
        if (units == 0) continue;
        row_sums[label] -= (float)(units * 8.8817841970012523e-16);
        lost[label] = 0;
    }
}
