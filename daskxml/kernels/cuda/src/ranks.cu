// The best k labels of every row; among equals the lowest label, which is why all lists are
// merged in ascending order of labels, and an equal score never displaces another.

__device__ inline void insert(float* scores, int* ids, int k, float value, int label) {
    int place = k - 1;
    for (; place > 0 && value > scores[place - 1]; --place) {
        scores[place] = scores[place - 1];
        ids[place] = ids[place - 1];
    }
    scores[place] = value;
    ids[place] = label;
}

// The best of a chunk of labels, (chunks, rows, k): a thread for each row and chunk.
KERNEL top_k_parts(
    float* scores, int* ids, const float* logits, const float* bias, int first_label, int k,
    int64 labels, int64 rows, int64 stride, int64 chunk) {
    int64 row = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int64 first = blockIdx.y * chunk, last = least(first + chunk, labels);
    scores += (blockIdx.y * rows + row) * k;
    ids += (blockIdx.y * rows + row) * k;
    for (int place = 0; place < k; ++place) {
        scores[place] = -INF;
        ids[place] = -1;
    }
    float lowest = -INF;
    for (int64 l = first; l < last; ++l) {
        float value = logits[l * stride + row] + bias[l];
        if (value > lowest) {
            insert(scores, ids, k, value, first_label + (int)l);
            lowest = scores[k - 1];
        }
    }
}

// Merge lists (lists, rows, k) into (rows, k), which is emptied first unless `keep`.
KERNEL merge_ranks(
    float* scores, int* ids, const float* list_scores, const int* list_ids, int lists, int k,
    int keep, int64 rows) {
    EACH(r, rows) {
        float* best = scores + r * k;
        for (int place = 0; place < k && !keep; ++place) {
            best[place] = -INF;
            ids[r * k + place] = -1;
        }
        for (int list = 0; list < lists; ++list) {
            int64 start = (list * rows + r) * k;
            for (int place = 0; place < k && list_scores[start + place] > best[k - 1]; ++place)
                insert(best, ids + r * k, k, list_scores[start + place], list_ids[start + place]);
        }
    }
}

// Scores are probabilities, never negative, so their bits are in the same order. Float arithmetic
// would flush subnormal numbers to zero, with the options of CuPy.
__device__ inline bool is_reversed(const float* scores, const int* ids, int place) {
    unsigned above = __float_as_uint(scores[place - 1]), below = __float_as_uint(scores[place]);
    return below > above || (below == above && ids[place] < ids[place - 1]);
}

// Nudge scores that rounding made equal, where the labels' order would reverse the rank.
__device__ inline void separate(float* scores, const int* ids, int k) {
    int last = 0;
    while (last < k && ids[last] >= 0) ++last;
    for (int place = 1; place < last; ++place)
        if (is_reversed(scores, ids, place) && __float_as_uint(scores[place - 1]) > 0)
            scores[place] = __uint_as_float(__float_as_uint(scores[place - 1]) - 1u);
    for (int place = last - 1; place > 0; --place)  // zeros cannot go lower: lift what is above
        if (is_reversed(scores, ids, place))
            scores[place - 1] = __uint_as_float(__float_as_uint(scores[place]) + 1u);
}

KERNEL softmax_scores(
    float* scores, const int* ids, const float* peak, const double* total, int k, int64 rows) {
    EACH(r, rows) {
        for (int64 p = r * k; p < (r + 1) * k; ++p)
            if (ids[p] >= 0) scores[p] = exp((double)scores[p] - peak[r]) / total[r];
        separate(scores + r * k, ids + r * k, k);
    }
}

KERNEL sigmoid_scores(float* scores, const int* ids, int k, int64 rows) {
    EACH(r, rows) {
        for (int64 p = r * k; p < (r + 1) * k; ++p)
            if (ids[p] >= 0) scores[p] = 1.0 / (1.0 + exp(-(double)scores[p]));
        separate(scores + r * k, ids + r * k, k);
    }
}
