// Targets: the labels of the batch's rows, in a block of labels as in labels.cu.

__device__ inline int64 first_at_least(const int* indices, int64 low, int64 high, int64 wanted) {
    while (low < high) {
        int64 middle = (low + high) >> 1;
        if (indices[middle] < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}

// out[r] += the sum of logits + bias at row r's labels in the block: one warp for a row.
template <class T>
__device__ void target_logits_of(
    double* out, const T* logits, const float* bias, const int64* indptr, const int* indices,
    const int64* rows, int64 count, int64 stride, int64 first_row, int64 first_label,
    int64 labels) {
    int64 i = blockIdx.x * 8ll + threadIdx.x / 32;
    if (i >= count) return;
    int64 stop = indptr[rows[i] + 1], r = first_row + i;
    int64 j = first_at_least(indices, indptr[rows[i]], stop, first_label) + threadIdx.x % 32;
    double sum = 0.0;
    for (; j < stop && indices[j] < first_label + labels; j += 32) {
        int64 label = indices[j] - first_label;
        sum += load_logit(logits[label * stride + r]) + bias[label];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) out[r] += sum;
}

KERNEL target_logits(
    double* out, const float* logits, const float* bias, const int64* indptr, const int* indices,
    const int64* rows, int64 count, int64 stride, int64 first_row, int64 first_label,
    int64 labels) {
    target_logits_of(
        out, logits, bias, indptr, indices, rows, count, stride, first_row, first_label,
        labels);
}

KERNEL target_logits_half(
    double* out, const unsigned short* logits, const float* bias, const int64* indptr,
    const int* indices, const int64* rows, int64 count, int64 stride, int64 first_row,
    int64 first_label, int64 labels) {
    target_logits_of(
        out, logits, bias, indptr, indices, rows, count, stride, first_row, first_label,
        labels);
}

// delta -= weights at the rows' labels. Rows share labels, so the sum over a label's row is formed
// in fixed point, `units` for a weight of 1: the same in any order. `deferred` starts from 0. Without a `delta` nothing else is done.
template <class T>
__device__ void subtract_targets_of(
    T* delta, uint64* deferred, const float* weights, const int64* indptr, const int* indices,
    const int64* rows, int64 count, int64 stride, int64 first_row, int64 first_label,
    int64 labels, double units) {
    int64 i = blockIdx.x * 8ll + threadIdx.x / 32;
    if (i >= count) return;
    int64 stop = indptr[rows[i] + 1], r = first_row + i;
    int64 j = first_at_least(indices, indptr[rows[i]], stop, first_label) + threadIdx.x % 32;
    uint64 amount = (uint64)(int64)(weights[r] * units);
    for (; j < stop && indices[j] < first_label + labels; j += 32) {
        int64 label = indices[j] - first_label;
        T* at = delta + label * stride + r;
        if (delta) store_logit(at, load_logit(*at) - weights[r]);
        atomicAdd(deferred + label, amount);
    }
}

KERNEL subtract_targets(
    float* delta, uint64* deferred, const float* weights, const int64* indptr, const int* indices,
    const int64* rows, int64 count, int64 stride, int64 first_row, int64 first_label,
    int64 labels, double units) {
    subtract_targets_of(
        delta, deferred, weights, indptr, indices, rows, count, stride, first_row, first_label,
        labels, units);
}

KERNEL subtract_targets_half(
    unsigned short* delta, uint64* deferred, const float* weights, const int64* indptr,
    const int* indices, const int64* rows, int64 count, int64 stride, int64 first_row,
    int64 first_label, int64 labels, double units) {
    subtract_targets_of(
        delta, deferred, weights, indptr, indices, rows, count, stride, first_row, first_label,
        labels, units);
}

// row_sums -= deferred, which is reset to 0.
KERNEL apply_deferred(float* row_sums, uint64* deferred, int64 labels) {
    EACH(label, labels) {
        int64 units = (int64)deferred[label];
        if (units == 0) continue;
        row_sums[label] -= (float)(units * 8.8817841970012523e-16);
        deferred[label] = 0;
    }
}
