// Products of float16 with the softmax in them: logits are computed in registers by the tensor
// cores of a GPU of capability 9.0, in each of two passes over the labels, and never reach memory.
// The first is attention without a second matrix of weights: sums of exponentials, and of
// exponentials times weights, whose quotient is the gradient by the hidden layer.
//
// Four warps multiply a first factor in registers, 16 rows in each warp, by a tile in shared memory
// ("wgmma"). Lane 4g + t of a warp holds of 16 columns of the first factor rows g and g + 8, columns
// 2t, 2t + 1 and 8 more; and of the product rows g and g + 8, columns 2t and 2t + 1 of every 8.
// A tile is 64 rows of UNITS numbers: panels of 64 columns, whose rows are 8 pieces of 16 bytes in
// an order that is different in each of 8 neighbouring rows, as the tensor cores want it. Both
// factors are stored like that, one tile after the other, so that a tile is one copy.

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define HEIGHT 64            // rows of a tile
#define PANEL (HEIGHT * 64)  // numbers of a panel

#ifdef __CUDACC_RTC__

__device__ inline unsigned tile_address(const void* at) {
    unsigned address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
        : "=r"(address) : "l"(at));
    return address;
}

__device__ inline void make_barrier(uint64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(tile_address(barrier)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Start to copy, by one thread.
__device__ inline void copy_tile(void* shared, const void* global, int bytes, uint64* barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(tile_address(barrier)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(tile_address(shared)), "l"(global), "r"(bytes), "r"(tile_address(barrier))
                 : "memory");
}

// Wait for the copy of a barrier's round, which is 0, 1, 0, 1 and so on.
__device__ inline void await_tile(uint64* barrier, int round) {
    asm volatile("{ .reg .pred there; again: "
                 "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1; "
                 "@!there bra again; }"
                 :: "r"(tile_address(barrier)), "r"(round) : "memory");
}

// How tensor cores find numbers in a tile, from `place` on: pieces are reordered over 128 bytes;
// 8 rows are 1024 bytes; the next panel is so many bytes away.
__device__ inline uint64 tile_descriptor(const unsigned short* tile, int place) {
    uint64 address = (tile_address(tile) + 2 * place) >> 4;
    return address | (uint64)(2 * PANEL >> 4) << 16 | (uint64)(1024 >> 4) << 32 | 1ull << 62;
}

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// d += a @ tile[:, 16 step : 16 step + 16].T, 16 x 64 for each warp.
__device__ inline void multiply_along(
    float* d, const unsigned* a, const unsigned short* tile, int step) {
    uint64 b = tile_descriptor(tile, step / 4 * PANEL + step % 4 * 16);
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : D8(0), D8(8), D8(16), D8(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d += a @ tile[16 step : 16 step + 16], 16 x UNITS for each warp.
template <int UNITS>
__device__ inline void multiply_across(
    float* d, const unsigned* a, const unsigned short* tile, int step) {
    uint64 b = tile_descriptor(tile, step * 16 * 64);
    if (UNITS == 64)
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
            : D8(0), D8(8), D8(16), D8(24)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
            : D8(0), D8(8), D8(16), D8(24), D8(UNITS / 2 - 32), D8(UNITS / 2 - 24),
              D8(UNITS / 2 - 16), D8(UNITS / 2 - 8)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait for all products but the last groups; only then are their numbers there.
template <int GROUPS>
__device__ inline void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(GROUPS) : "memory");
}

__device__ inline float power_of_2(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// Two float16 in one word, the first in its low half.
__device__ inline unsigned two_halves(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

#endif

struct alignas(8) Pair { float low, high; };
struct alignas(16) Four { float of[4]; };
struct alignas(16) Piece { unsigned short of[8]; };

// Where a number is, in tiles.
__device__ inline int64 place_of(int64 row, int unit, int units) {
    int piece = (unit / 8 % 8) ^ (int)(row % 8);
    return row / HEIGHT * (HEIGHT * units) + unit / 64 * PANEL + row % HEIGHT * 64 + piece * 8
        + unit % 8;
}

// out = factor * x in tiles, with rows of 0 up to the end of the last one.
KERNEL to_tiles(
    unsigned short* out, const float* x, float factor, int64 rows, int units, int64 pieces) {
    bool is_aligned = (uint64)x % sizeof(Four) == 0;
    EACH(i, pieces) {
        int64 row = i / (units / 8);
        int unit = (int)(i % (units / 8)) * 8;
        const float* from = x + row * units + unit;
        Piece to;
        if (row >= rows) {
            for (int k = 0; k < 8; ++k) to.of[k] = 0;
        } else if (is_aligned) {
            Four parts[2] = {((const Four*)from)[0], ((const Four*)from)[1]};
            for (int k = 0; k < 8; ++k) to.of[k] = half_bits(factor * parts[k / 4].of[k % 4]);
        } else {
            for (int k = 0; k < 8; ++k) to.of[k] = half_bits(factor * from[k]);
        }
        *(Piece*)(out + place_of(row, unit, units)) = to;
    }
}

// 16 rows as the first factor.
template <int UNITS>
__device__ inline void load_factor(unsigned (*out)[4], const unsigned short* x, int64 first) {
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int s = 0; s < UNITS / 16; ++s)
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            int unit = 16 * s + 2 * (lane % 4) + 8 * (i / 2);
            out[s][i] = *(const unsigned*)(x + place_of(first + lane / 4 + 8 * (i % 2), unit, UNITS));
        }
}

// The tiles of one factor in turn: the next one is under way while one is in use.
template <int UNITS>
struct Tiles {
    unsigned short (*slots)[HEIGHT * UNITS];
    uint64* barriers;  // one for each slot

    __device__ void begin() {
        if (threadIdx.x == 0) make_barrier(barriers), make_barrier(barriers + 1);
        __syncthreads();
    }
    __device__ void load(int number, const unsigned short* from) {
        if (threadIdx.x == 0)
            copy_tile(slots[number % 2], from, 2 * HEIGHT * UNITS, barriers + number % 2);
    }
    // Afterwards the tile is there, and nobody needs the last one.
    __device__ const unsigned short* await(int number) {
        await_tile(barriers + number % 2, number / 2 % 2);
        __syncthreads();
        return slots[number % 2];
    }
};

// z += the products of a tile and 16 rows.
template <int UNITS>
__device__ inline void add_logits(
    float* z, const unsigned (*factor)[4], const unsigned short* tile) {
    begin_products();
    #pragma unroll
    for (int s = 0; s < UNITS / 16; ++s) multiply_along(z, factor[s], tile, s);
    end_products();
    await_products<0>();
}

// mean += 2**z @ tile, where z is 16 x 64 for each warp; sum[h] += the sums of its rows.
template <int UNITS>
__device__ inline void add_powers(
    float* mean, float* sum, const float* z, const unsigned short* tile) {
    unsigned powers[4][4];
    #pragma unroll
    for (int i = 0; i < 32; i += 2) {
        float low = power_of_2(z[i]), high = power_of_2(z[i + 1]);
        sum[i / 2 % 2] += low + high;
        powers[i / 8][i / 2 % 4] = two_halves(low, high);
    }
    begin_products();
    #pragma unroll
    for (int k = 0; k < 4; ++k) multiply_across<UNITS>(mean, powers[k], tile, k);
    end_products();
    await_products<0>();
}

// The sum over the four lanes that have numbers of the same rows; or the largest.
__device__ inline float sum_of_four(float value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

__device__ inline float most_of_four(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

// Over a chunk of labels, the sum of exponentials of hidden @ weight.T + bias, (chunks, rows), and
// that of the exponentials times weights, (chunks, rows, UNITS); both relative to exp(tops).
// Logits are in units of log 2, as `hidden` is multiplied by LOG2E.
//
// A warp has 16 rows of the batch in registers, a tile is 64 labels. What is subtracted from a row's
// logits puts its largest at first at 2**ROOM, and is only raised when one exceeds 2**MOST, the end
// of float16: sums are rarely scaled again, and the largest exponentials keep all their bits.
#define ROOM 11.0f
#define MOST 15.0f

template <int UNITS, int THREADS>
__device__ void softmax_products_of(
    float* tops, float* sums, float* means, const unsigned short* hidden,
    const unsigned short* weight, const float* bias, int64 labels, int64 rows, int64 chunk) {
    alignas(1024) __shared__ unsigned short slots[2][HEIGHT * UNITS];
    __shared__ uint64 barriers[2];
    __shared__ Pair lifts[2][HEIGHT / 2];
    int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    int64 row = (blockIdx.x * (int64)THREADS + threadIdx.x) / 32 * 16;
    int64 start = blockIdx.y * chunk, stop = least(start + chunk, labels);
    Tiles<UNITS> tiles = {slots, barriers};
    tiles.begin();
    unsigned factor[UNITS / 16][4];
    load_factor<UNITS>(factor, hidden, row);
    float base[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f}, mean[UNITS / 2];
    #pragma unroll
    for (int i = 0; i < UNITS / 2; ++i) mean[i] = 0.0f;
    auto lift_of = [&](int64 label) {
        int64 at = label + threadIdx.x;
        return threadIdx.x < HEIGHT && at < stop ? bias[at] : -INF;
    };
    float lift = lift_of(start);
    auto load = [&](int number, int64 label) {
        tiles.load(number, weight + label * UNITS);
        if (threadIdx.x < HEIGHT) ((float*)lifts[number % 2])[threadIdx.x] = lift * LOG2E;
        lift = lift_of(label + HEIGHT);  // in time: of the next tile
    };
    load(0, start);
    int number = 0;
    for (int64 label = start; label < stop; label += HEIGHT, ++number) {
        const unsigned short* tile = tiles.await(number);
        const Pair* lifted = lifts[number % 2] + pair;
        if (label + HEIGHT < stop) load(number + 1, label + HEIGHT);
        float z[32], top[2] = {-1e30f, -1e30f};
        #pragma unroll
        for (int i = 0; i < 32; i += 4) {
            Pair both = lifted[i];
            z[i] = both.low - base[0];
            z[i + 1] = both.high - base[0];
            z[i + 2] = both.low - base[1];
            z[i + 3] = both.high - base[1];
        }
        add_logits<UNITS>(z, factor, tile);
        #pragma unroll
        for (int i = 0; i < 32; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], z[i]);
        bool is_first = label == start;
        if (__any_sync(ALL_LANES, is_first || fmaxf(top[0], top[1]) > MOST)) {
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                float rise = most_of_four(top[h]) - ROOM, less = 1.0f;
                if (!is_first) {
                    rise = fmaxf(rise, 0.0f);
                    less = power_of_2(-rise);
                }
                base[h] += rise;
                sum[h] *= less;
                #pragma unroll
                for (int i = 2 * h; i < 32; i += 4) z[i] -= rise, z[i + 1] -= rise;
                #pragma unroll
                for (int i = 2 * h; i < UNITS / 2; i += 4) mean[i] *= less, mean[i + 1] *= less;
            }
        }
        add_powers<UNITS>(mean, sum, z, tile);
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = sum_of_four(sum[h]);
        int64 at = row + 8 * h + group;
        if (at >= rows) continue;
        at += blockIdx.y * rows;
        if (pair == 0) tops[at] = base[h] * LN2, sums[at] = total;
        Pair* place = (Pair*)(means + at * UNITS) + pair;
        #pragma unroll
        for (int i = 0; i < UNITS / 2; i += 4) place[i] = {mean[i + 2 * h], mean[i + 2 * h + 1]};
    }
}

// out = keep * out + factor * exp(weight @ hidden.T + bias - shift) @ hidden, and the sum over each
// label's exponentials: a warp has 16 labels in registers, a tile is 64 rows.
template <int UNITS, int THREADS>
__device__ void softmax_update_of(
    float* out, float* row_sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, const float* shift, int64 labels, int64 rows, const float* place,
    float of_place, float keep) {
    alignas(1024) __shared__ unsigned short slots[2][HEIGHT * UNITS];
    __shared__ uint64 barriers[2];
    __shared__ Pair shifts[2][HEIGHT / 2];
    float factor = rate_of(place, of_place);
    int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    int64 label = (blockIdx.x * (int64)THREADS + threadIdx.x) / 32 * 16;
    Tiles<UNITS> tiles = {slots, barriers};
    tiles.begin();
    unsigned first[UNITS / 16][4];
    load_factor<UNITS>(first, weight, label);
    float lift[2], sum[2] = {0.0f, 0.0f}, product[UNITS / 2];
    #pragma unroll
    for (int h = 0; h < 2; ++h)
        lift[h] = label + 8 * h + group < labels ? bias[label + 8 * h + group] * LOG2E : -INF;
    #pragma unroll
    for (int i = 0; i < UNITS / 2; ++i) product[i] = 0.0f;
    auto shift_of = [&](int64 row) {
        int64 at = row + threadIdx.x;
        return threadIdx.x < HEIGHT && at < rows ? shift[at] : INF;
    };
    float drop = shift_of(0);
    auto load = [&](int number, int64 row) {
        tiles.load(number, hidden + row * UNITS);
        if (threadIdx.x < HEIGHT) ((float*)shifts[number % 2])[threadIdx.x] = drop * LOG2E;
        drop = shift_of(row + HEIGHT);  // in time: of the next tile
    };
    load(0, 0);
    int number = 0;
    for (int64 row = 0; row < rows; row += HEIGHT, ++number) {
        const unsigned short* tile = tiles.await(number);
        const Pair* shifted = shifts[number % 2] + pair;
        if (row + HEIGHT < rows) load(number + 1, row + HEIGHT);
        float z[32];
        #pragma unroll
        for (int i = 0; i < 32; i += 4) {
            Pair both = shifted[i];
            z[i] = lift[0] - both.low;
            z[i + 1] = lift[0] - both.high;
            z[i + 2] = lift[1] - both.low;
            z[i + 3] = lift[1] - both.high;
        }
        add_logits<UNITS>(z, first, tile);
        add_powers<UNITS>(product, sum, z, tile);
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = sum_of_four(sum[h]);
        int64 at = label + 8 * h + group;
        if (at >= labels) continue;
        if (pair == 0) row_sums[at] = total;
        Pair* place = (Pair*)(out + at * UNITS) + pair;
        #pragma unroll
        for (int i = 0; i < UNITS / 2; i += 4) {
            Pair old = {0.0f, 0.0f};
            if (keep != 0.0f) old = place[i];
            old.low = keep * old.low + factor * product[i + 2 * h];
            old.high = keep * old.high + factor * product[i + 2 * h + 1];
            place[i] = old;
        }
    }
}

KERNEL BOUNDS(128, 3) softmax_products_64(
    float* tops, float* sums, float* means, const unsigned short* hidden,
    const unsigned short* weight, const float* bias, int64 labels, int64 rows, int64 chunk) {
    softmax_products_of<64, 128>(
        tops, sums, means, hidden, weight, bias, labels, rows, chunk);
}

KERNEL BOUNDS(128, 3) softmax_products_128(
    float* tops, float* sums, float* means, const unsigned short* hidden,
    const unsigned short* weight, const float* bias, int64 labels, int64 rows, int64 chunk) {
    softmax_products_of<128, 128>(
        tops, sums, means, hidden, weight, bias, labels, rows, chunk);
}

KERNEL BOUNDS(128, 3) softmax_update_64(
    float* out, float* row_sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, const float* shift, int64 labels, int64 rows, const float* place,
    float of_place, float keep) {
    softmax_update_of<64, 128>(
        out, row_sums, hidden, weight, bias, shift, labels, rows, place, of_place, keep);
}

KERNEL BOUNDS(128, 3) softmax_update_128(
    float* out, float* row_sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, const float* shift, int64 labels, int64 rows, const float* place,
    float of_place, float keep) {
    softmax_update_of<128, 128>(
        out, row_sums, hidden, weight, bias, shift, labels, rows, place, of_place, keep);
}

// out[r] = unscale * (the sum over chunks of exp(tops - shift) * means - weights[r] * out[r]): from
// the parts of `softmax_products` to the gradient by the hidden layer, where `out` is what
// `target_products` leaves. A block for a row.
KERNEL join_products(
    float* out, const float* tops, const float* means, const float* shift, const float* weights,
    float unscale, int chunks, int64 rows, int units) {
    __shared__ float parts[256];
    int64 r = blockIdx.x;
    int unit = threadIdx.x % units;
    float sum = 0.0f;
    for (int64 c = threadIdx.x / units; c < chunks; c += blockDim.x / units)
        sum += expf(tops[c * rows + r] - shift[r]) * means[(c * rows + r) * units + unit];
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= units) return;
    for (int i = threadIdx.x + units; i < blockDim.x; i += units) sum += parts[i];
    float* place = out + r * units + unit;
    *place = unscale * (sum - weights[r] * *place);
}

// The sum of weight @ hidden.T + bias over the labels of each row, and sums of those labels' weights
// (rows, units): a block for a row, a warp for every eighth of its labels.
KERNEL target_products(
    double* out, float* sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, const int64* indptr, const int* indices, const int64* rows, int units,
    int64 first_row) {
    __shared__ float parts[8][128];
    int64 r = first_row + blockIdx.x, row = rows[blockIdx.x];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float own[4] = {0.0f, 0.0f, 0.0f, 0.0f}, total = 0.0f;
    for (int64 j = indptr[row] + warp; j < indptr[row + 1]; j += 8) {
        int64 label = indices[j];
        if (lane == 0) total += bias[label];
        for (int k = 0; 32 * k < units; ++k)
            own[k] += half_value(weight[place_of(label, lane + 32 * k, units)]);
    }
    for (int k = 0; 32 * k < units; ++k) parts[warp][lane + 32 * k] = own[k];
    __syncthreads();
    int unit = threadIdx.x;
    if (unit < units) {
        float sum = 0.0f;
        for (int w = 0; w < 8; ++w) sum += parts[w][unit];
        sums[r * units + unit] = sum;
        total += LN2 * half_value(hidden[place_of(r, unit, units)]) * sum;
    }
    double whole = block_sum((double)total);
    if (threadIdx.x == 0) out[r] += whole;
}
