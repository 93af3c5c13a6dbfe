// Entries grouped by feature, without a general sort and without synchronizing with the host.
// Atomics are on integers only and the result does not depend on their order: entries of a feature
// land in any order, and the last kernel puts them into the order of their rows. Entries of the
// column -1 are none.

// Exclusive prefix sums within each chunk, in place: totals[b] is the sum of chunk b.
KERNEL scan_chunks(int* x, int* totals, int64 n) {
    int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    int total, before = block_before(i < n ? x[i] : 0, &total);
    if (i < n) x[i] = before;
    if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

// The same for the totals, by one block; totals[chunks] becomes the sum of all.
KERNEL scan_totals(int* totals, int chunks) {
    int done = 0;
    for (int start = 0; start < chunks; start += blockDim.x) {
        int i = start + threadIdx.x;
        int total, before = block_before(i < chunks ? totals[i] : 0, &total);
        if (i < chunks) totals[i] = done + before;
        done += total;
    }
    if (threadIdx.x == 0) totals[chunks] = done;
}

// x[i] of n numbers becomes the sum of all before; x[n] is the sum of all.
KERNEL scan_add(int* x, const int* totals, int chunk, int64 n) {
    EACH(i, n + 1) x[i] = i < n ? x[i] + totals[i / chunk] : totals[(n + chunk - 1) / chunk];
}

// counts[column] = n - the first entry of the column; it was 0.
KERNEL find_first(int* counts, const int* columns, int n) {
    EACH(e, n)
    if (columns[e] >= 0) atomicMax(counts + columns[e], n - (int)e);
}

KERNEL flag_first(int* flags, const int* counts, const int* columns, int n) {
    EACH(e, n) flags[e] = columns[e] >= 0 && counts[columns[e]] == n - (int)e;
}

// Features in the order of their first entries; numbers[e] flags stand before entry e.
KERNEL number_features(
    int* features, int* counts, const int* numbers, const int* columns, int n) {
    EACH(e, n)
    if (numbers[e + 1] != numbers[e]) {
        features[numbers[e]] = columns[e];
        counts[columns[e]] = numbers[e];  // from here on the feature's number
    }
}

KERNEL count_entries(int* sizes, const int* counts, const int* columns, int n) {
    EACH(e, n)
    if (columns[e] >= 0) atomicAdd(sizes + counts[columns[e]], 1);
}

// Every entry into a slot of its feature; `taken` is 0.
KERNEL place_entries(
    int* slots, int* taken, const int* starts, const int* counts, const int* columns, int n) {
    EACH(e, n)
    if (columns[e] >= 0) {
        int feature = counts[columns[e]];
        slots[starts[feature] + atomicAdd(taken + feature, 1)] = e;
    }
}

KERNEL clear_counts(int* counts, const int* columns, int n) {
    EACH(e, n)
    if (columns[e] >= 0) counts[columns[e]] = 0;
}

KERNEL copy_starts(int64* out, const int* starts, const int* count) {
    EACH(i, *count + 1) out[i] = starts[i];
}

// One warp for each feature: its entries by rank among the rows, in each of which it occurs once.
// Few entries are compared with each other; many set bits for the rows of a window of 8192.
KERNEL order_entries(
    int* out_rows, float* out_values, const int* slots, const int* starts, const int* rows,
    const float* values, const int* count) {
    __shared__ unsigned bits[4][256];
    __shared__ int before[4][256];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int feature = blockIdx.x * 4 + warp;
    if (feature >= *count) return;
    int start = starts[feature], size = starts[feature + 1] - start;
    if (size <= 32) {
        int e = lane < size ? slots[start + lane] : 0;
        int row = lane < size ? rows[e] : 0x7fffffff, rank = 0;
        for (int other = 0; other < size; ++other)
            rank += __shfl_sync(ALL_LANES, row, other) < row;
        if (lane < size) {
            out_rows[start + rank] = row;
            out_values[start + rank] = values[e];
        }
        return;
    }
    int done = 0;
    for (int first = 0; done < size; first += 8192) {
        for (int w = lane; w < 256; w += 32) bits[warp][w] = 0;
        __syncwarp();
        for (int k = lane; k < size; k += 32) {
            int row = rows[slots[start + k]] - first;
            if (row >= 0 && row < 8192) atomicOr(&bits[warp][row / 32], 1u << (row % 32));
        }
        __syncwarp();
        int own = 0;
        for (int w = 8 * lane; w < 8 * lane + 8; ++w) own += __popc(bits[warp][w]);
        int sum = done + warp_before(own);
        for (int w = 8 * lane; w < 8 * lane + 8; ++w) {
            before[warp][w] = sum;
            sum += __popc(bits[warp][w]);
        }
        __syncwarp();
        for (int k = lane; k < size; k += 32) {
            int e = slots[start + k], row = rows[e] - first;
            if (row >= 0 && row < 8192) {
                unsigned lower = bits[warp][row / 32] & ((1u << (row % 32)) - 1u);
                int rank = before[warp][row / 32] + __popc(lower);
                out_rows[start + rank] = rows[e];
                out_values[start + rank] = values[e];
            }
        }
        done = __shfl_sync(ALL_LANES, sum, 31);
    }
}
