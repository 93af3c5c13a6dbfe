// Label trees: the scores of many nodes are fitted in one launch, and rows descend by beam.
// Features that occur in the rows of a problem are its columns, numbered in ascending order.

// column_of[problem of row i][feature] = 1 for the features of every row i; it was 0.
KERNEL mark_columns(
    int* column_of, const int64* indptr, const int* indices, const int64* rows,
    const int* problem_of, int64 features) {
    int* own = column_of + problem_of[blockIdx.x] * features;
    int64 row = rows[blockIdx.x];
    for (int64 j = indptr[row] + threadIdx.x; j < indptr[row + 1]; j += blockDim.x)
        own[indices[j]] = 1;
}

// Marks become numbers, and -1 where there is none; one block for each problem.
KERNEL number_columns(int* column_of, int* counts, int64 features) {
    int* own = column_of + blockIdx.x * features;
    int done = 0;
    for (int64 start = 0; start < features; start += blockDim.x) {
        int64 f = start + threadIdx.x;
        int mark = f < features ? own[f] : 0;
        int total, before = block_before(mark, &total);
        if (f < features) own[f] = mark ? done + before : -1;
        done += total;
    }
    if (threadIdx.x == 0) counts[blockIdx.x] = done;
}

KERNEL name_columns(
    int* names, const int* column_of, const int64* column_starts, int64 features) {
    const int* own = column_of + blockIdx.y * features;
    for (int64 f = blockIdx.x * blockDim.x + threadIdx.x; f < features;
         f += (int64)gridDim.x * blockDim.x)
        if (own[f] >= 0) names[column_starts[blockIdx.y] + own[f]] = f;
}

// What is fetched of a problem's row: its first entry, its first mask (below), how many entries it
// has, its squared norm with the bias's 1, and its weight.
struct alignas(16) RowFacts {
    int64 start, masks;
    int size;
    float norm, weight;
    int unused;
};

// An entry: the column times 32, where a tile's weights begin, and the value.
struct alignas(8) Entry {
    int place;
    float value;
};

// Copies the rows of all problems, with their own columns, and writes the norms.
KERNEL gather_entries(
    uint64* out_entries, int64* row_facts, const int* column_of, const int64* indptr,
    const int* indices, const float* data, const int64* rows, const int* problem_of,
    int64 features) {
    const int* own = column_of + problem_of[blockIdx.x] * features;
    RowFacts* facts = (RowFacts*)row_facts + blockIdx.x;
    Entry* entries = (Entry*)out_entries + facts->start;
    int64 start = indptr[rows[blockIdx.x]], stop = indptr[rows[blockIdx.x] + 1];
    float norm = 0.0f;
    for (int64 j = start + threadIdx.x; j < stop; j += blockDim.x) {
        float value = data ? data[j] : 1.0f;
        entries[j - start] = {32 * own[indices[j]], value};
        norm += value * value;
    }
    norm = block_sum(norm);
    if (threadIdx.x == 0) facts->norm = norm + 1.0f;
}

// Which children are a row's own: for each tile of a problem a mask of 32 bits, row by row.
KERNEL mask_children(
    unsigned* masks, const int64* row_facts, const int* row_of, const int* children, int64 n) {
    EACH(i, n) {
        int64 first = ((const RowFacts*)row_facts)[row_of[i]].masks;
        unsigned* word = masks + first + children[i] / 32;
        atomicOr(word, 1u << (children[i] % 32));
    }
}

#define KEPT 8  // weights that a thread keeps in registers between a row's score and its step

// One block of four warps for a tile, up to 32 children of a problem: a lane is a child, and the
// warps share the entries of a row. Rows come one after the other, in the order of each pass; what
// the next ones need is on its way meanwhile. `dual` has a number for every row and child, and
// `diagonals` for every child 1 / (2 C). The weights of a tile are (columns, 32), and its duals
// (rows, 32).
KERNEL BOUNDS(128, 5) fit_nodes(
    float* weights, float* biases, float* dual, const int* tiles, const int64* tile_starts,
    const int64* row_starts, const int64* child_starts, const int64* row_facts,
    const uint64* entries, const unsigned* masks, const int* orders, const float* child_weights,
    const float* diagonals, int passes) {
    __shared__ float parts[4][32];
    __shared__ Entry shared[2][128];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int problem = tiles[2 * blockIdx.x], tile = tiles[2 * blockIdx.x + 1];
    int child = 32 * tile + lane;
    bool is_child = child < child_starts[problem + 1] - child_starts[problem];
    float* weight = weights + tile_starts[2 * blockIdx.x] * 32 + lane;
    float* duals = dual + tile_starts[2 * blockIdx.x + 1] * 32 + lane;
    float own_count = 1.0f, diagonal = is_child ? diagonals[child_starts[problem] + child] : 1.0f;
    if (child_weights && is_child) own_count = child_weights[child_starts[problem] + child];
    const RowFacts* facts_of = (const RowFacts*)row_facts + row_starts[problem];
    const int* order = orders + passes * row_starts[problem];
    int64 steps = passes * (row_starts[problem + 1] - row_starts[problem]);
    float bias = 0.0f;
    int number = order[0], number1 = order[least(1, steps - 1)];
    int number2 = order[least(2, steps - 1)];
    RowFacts row = facts_of[number], row1 = facts_of[number1];
    unsigned mask = masks[row.masks + tile];
    if (threadIdx.x < row.size) shared[0][threadIdx.x] = ((const Entry*)entries)[row.start + threadIdx.x];
    __syncthreads();
    for (int64 done = 0; done < steps; ++done) {
        float old = duals[(int64)number * 32];
        const Entry* here = shared[done % 2] + warp;
        int count = (row.size - warp + 3) / 4;  // of this warp's entries
        Entry own[KEPT];
        float kept[KEPT], sum = 0.0f;
#pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            if (k >= count) continue;
            own[k] = here[4 * k];
            kept[k] = weight[own[k].place];
        }
        int number3 = order[least(done + 3, steps - 1)];
        RowFacts row2 = facts_of[number2];
        Entry entry = {0, 0.0f};
        if (threadIdx.x < row1.size) entry = ((const Entry*)entries)[row1.start + threadIdx.x];
        unsigned mask1 = masks[row1.masks + tile];
#pragma unroll
        for (int k = 0; k < KEPT; ++k)
            if (k < count) sum += own[k].value * kept[k];
#pragma unroll 4
        for (int k = KEPT; k < least(32, count); ++k) {
            Entry one = here[4 * k];
            sum += one.value * weight[one.place];
        }
        const Entry* beyond = (const Entry*)entries + row.start + warp;
        for (int k = 32; k < count; ++k) sum += beyond[4 * k].value * weight[beyond[4 * k].place];
        parts[warp][lane] = sum;
        float sign = mask >> lane & 1 ? 1.0f : -1.0f;
        float times = sign > 0.0f ? row.weight * own_count : row.weight;
        __syncthreads();

        float score = bias + ((parts[0][lane] + parts[1][lane]) + (parts[2][lane] + parts[3][lane]));
        float step = 0.0f;
        if (is_child) {
            float slack = diagonal / times, gradient = sign * score - 1.0f + old * slack;
            float now = times > 0.0f ? old - gradient / (row.norm + slack) : 0.0f;
            if (now < 0.0f) now = 0.0f;
            step = sign * (now - old);
            if (warp == 0) duals[(int64)number * 32] = now;
        }
        bias += step;
        if (__any_sync(ALL_LANES, step != 0.0f)) {
#pragma unroll
            for (int k = 0; k < KEPT; ++k)
                if (k < count) weight[own[k].place] = kept[k] + own[k].value * step;
#pragma unroll 4
            for (int k = KEPT; k < least(32, count); ++k) {
                Entry one = here[4 * k];
                weight[one.place] += one.value * step;
            }
            for (int k = 32; k < count; ++k)
                weight[beyond[4 * k].place] += beyond[4 * k].value * step;
        }
        shared[(done + 1) % 2][threadIdx.x] = entry;
        row = row1;
        row1 = row2;
        mask = mask1;
        number = number1;
        number1 = number2;
        number2 = number3;
        __syncthreads();
    }
    if (is_child && warp == 0) biases[child_starts[problem] + child] = bias;
}

// How many weights of each column are not small: one warp for a column, a row of blocks a problem.
// `weight_starts` has the first tile's weights of each problem, in columns of 32.
KERNEL count_kept(
    int* counts, const float* weights, const int64* column_starts, const int64* child_starts,
    const int64* weight_starts, float smallest) {
    int lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
    int64 first = column_starts[blockIdx.y], columns = column_starts[blockIdx.y + 1] - first;
    int children = child_starts[blockIdx.y + 1] - child_starts[blockIdx.y];
    for (int64 i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < columns; i += warps) {
        const float* weight = weights + (weight_starts[blockIdx.y] + i) * 32 + lane;
        int count = 0;
        for (int c = lane; c < children; c += 32, weight += columns * 32)
            count += fabsf(*weight) >= smallest;
        count = warp_sum(count);
        if (lane == 0) counts[first + i] = count;
    }
}

KERNEL write_kept(
    unsigned short* out_children, float* out_weights, const int* offsets, const float* weights,
    const int64* column_starts, const int64* child_starts, const int64* weight_starts,
    float smallest) {
    int lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
    int64 first = column_starts[blockIdx.y], columns = column_starts[blockIdx.y + 1] - first;
    int children = child_starts[blockIdx.y + 1] - child_starts[blockIdx.y];
    for (int64 i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < columns; i += warps) {
        const float* weight = weights + (weight_starts[blockIdx.y] + i) * 32 + lane;
        int at = offsets[first + i];
        for (int start = 0; start < children; start += 32, weight += columns * 32) {
            int c = start + lane;
            int is_kept = c < children && fabsf(*weight) >= smallest;
            int before = warp_before(is_kept);
            if (is_kept) {
                out_children[at + before] = c;
                out_weights[at + before] = *weight;
            }
            at += warp_sum(is_kept);
        }
    }
}

// The hash table by which a node finds the chunk of a feature: keys, and a chunk's first weight and
// number of weights in one word; -1 is free.
#define COUNT_BITS 20
__device__ inline uint64 chunk_key(int64 node, int feature) { return (uint64)node << 32 | feature; }

KERNEL fill_table(
    uint64* table, const int64* node_starts, int64 nodes, const int* features,
    const int64* chunk_starts, int64 chunks, uint64 mask) {
    EACH(chunk, chunks) {
        int64 node = 0, end = nodes;  // the last node that starts at this chunk or before
        while (end - node > 1) {
            int64 middle = (node + end) / 2;
            if (node_starts[middle] <= chunk) node = middle;
            else end = middle;
        }
        uint64 key = chunk_key(node, features[chunk]), slot = hash64(node, features[chunk]) & mask;
        while (atomicCAS(table + 2 * slot, ~0ull, key) != ~0ull) slot = (slot + 1) & mask;
        int64 start = chunk_starts[chunk];
        table[2 * slot + 1] = (uint64)start << COUNT_BITS | (chunk_starts[chunk + 1] - start);
    }
}

// Inserts into the best so far, descending, ties by the lowest id; there are `count` of `limit`.
__device__ inline void insert_best(
    float* scores, int* ids, int count, int limit, float score, int id) {
    int place = count;
    while (place > 0 &&
           (scores[place - 1] < score || (scores[place - 1] == score && ids[place - 1] > id)))
        --place;
    if (place == limit) return;
    for (int i = count < limit ? count : limit - 1; i > place; --i) {
        scores[i] = scores[i - 1];
        ids[i] = ids[i - 1];
    }
    scores[place] = score;
    ids[place] = id;
}

// One warp for a row. `room` has a score for each child of a node and two beams for every warp,
// `held` two beams. Chunks are looked up 32 features at a time and added in the features' order.
KERNEL BOUNDS(128, 8) rank_leaves(
    int* out_ids, float* out_scores, float* room, int* held, int beam, int levels, int widest,
    int count, const int64* indptr, const int* indices, const float* data, const int64* rows,
    int64 size, const int64* child_starts, int64 nodes, const float* bias,
    const unsigned short* children, const float* weights, const uint64* table, uint64 mask) {
    int lane = threadIdx.x % 32;
    int64 own = (blockIdx.x * (int64)blockDim.x + threadIdx.x) / 32;
    int64 warps = gridDim.x * (int64)blockDim.x / 32;
    float* score = room + own * (widest + 2 * beam);
    for (int64 i = own; i < size; i += warps) {
        int64 start = indptr[rows[i]], stop = indptr[rows[i] + 1];
        int* node_ids = held + own * 2 * beam;
        int* below_ids = node_ids + beam;
        float* node_scores = score + widest;
        float* below_scores = node_scores + beam;
        int beams = 1;
        if (lane == 0) node_ids[0] = 0, node_scores[0] = 0.0f;
        __syncwarp();
        for (int level = 0; level < levels; ++level) {
            bool is_last = level == levels - 1;
            int* ids = is_last ? out_ids + i * count : below_ids;
            float* best = is_last ? out_scores + i * count : below_scores;
            int limit = is_last ? count : beam, found = 0;
            for (int b = 0; b < beams; ++b) {
                float above = node_scores[b];
                if (found == limit && above < best[found - 1]) break;
                int64 node = node_ids[b], first = child_starts[node];
                int width = child_starts[node + 1] - first;
                for (int c = lane; c < width; c += 32) score[c] = bias[first - 1 + c];
                __syncwarp();
                for (int64 j = start; j < stop; j += 32) {
                    int chunk_count = 0;
                    int64 chunk_start = 0;
                    float value = 0.0f;
                    if (j + lane < stop) {
                        int feature = indices[j + lane];
                        value = data ? data[j + lane] : 1.0f;
                        uint64 key = chunk_key(node, feature), slot = hash64(node, feature) & mask;
                        while (table[2 * slot] != ~0ull && table[2 * slot] != key)
                            slot = (slot + 1) & mask;
                        if (table[2 * slot] == key) {
                            chunk_start = table[2 * slot + 1] >> COUNT_BITS;
                            chunk_count = table[2 * slot + 1] & ((1 << COUNT_BITS) - 1);
                        }
                    }
                    for (int k = 0; k < least(32, stop - j); ++k) {
                        int size_of = __shfl_sync(ALL_LANES, chunk_count, k);
                        if (size_of == 0) continue;
                        int64 from = __shfl_sync(ALL_LANES, chunk_start, k);
                        float factor = __shfl_sync(ALL_LANES, value, k);
                        for (int64 e = from + lane; e < from + size_of; e += 32)
                            score[children[e]] += factor * weights[e];
                        __syncwarp();
                    }
                }
                for (int c = 0; c < width; c += 32) {
                    bool is_child = c + lane < width;
                    float lack = is_child ? 1.0f - score[c + lane] : 0.0f;
                    if (lack < 0.0f) lack = 0.0f;
                    float total = above - lack * lack * lack;
                    unsigned left = __ballot_sync(
                        ALL_LANES, is_child && (found < limit || total >= best[found - 1]));
                    for (; left; left &= left - 1) {
                        int from = __ffs(left) - 1;
                        float candidate = __shfl_sync(ALL_LANES, total, from);
                        int id = first + c + from - (is_last ? nodes : 0);
                        if (lane == 0) insert_best(best, ids, found, limit, candidate, id);
                        if (found < limit) ++found;
                        __syncwarp();
                    }
                }
            }
            if (is_last)
                for (int k = found + lane; k < count; k += 32) ids[k] = -1, best[k] = -INF;
            beams = found;
            below_ids = node_ids;
            below_scores = node_scores;
            node_ids = ids;
            node_scores = best;
        }
        __syncwarp();
    }
}

// A label's shares of its scores in several rankings, added; a thread for a row.
KERNEL average_rankings(
    int* out_ids, float* out_scores, const int* ids, const float* scores, const float* shares,
    int models, int64 rows, int candidates, int count) {
    EACH(i, rows) {
        int found = 0;
        for (int m = 0; m < models; ++m) {
            for (int c = 0; c < candidates; ++c) {
                int64 at = (m * rows + i) * candidates + c;
                int label = ids[at];
                if (label < 0) break;
                float total = shares[m] * scores[at];
                bool is_first = true;
                for (int other = 0; other < models; ++other) {
                    if (other == m) continue;
                    for (int d = 0; d < candidates; ++d) {
                        int64 there = (other * rows + i) * candidates + d;
                        if (ids[there] != label) continue;
                        is_first = is_first && other > m;
                        total += shares[other] * scores[there];
                        break;
                    }
                }
                if (!is_first) continue;
                insert_best(out_scores + i * count, out_ids + i * count, found, count, total, label);
                if (found < count) ++found;
            }
        }
        for (int k = found; k < count; ++k) out_ids[i * count + k] = -1, out_scores[i * count + k] = 0.0f;
    }
}
