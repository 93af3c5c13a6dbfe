// Products of float16 with the softmax in them: logits are computed in registers by the tensor
// cores of a GPU of capability 9.0, once for the sums and once for the gradient, and never reach
// memory.
//
// Four warps multiply a first factor in registers, 16 rows in each warp, by a tile in shared memory
// ("wgmma"). Lane 4g + t of a warp holds of 16 columns of the first factor rows g and g + 8, columns
// 2t, 2t + 1 and 8 more; and of the product rows g and g + 8, columns 2t and 2t + 1 of every 8.
// A tile is 64 rows of UNITS numbers: panels of 64 columns, whose rows are 8 pieces of 16 bytes in
// an order that is different in each of 8 neighbouring rows, as the tensor cores want it.

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

// Start to copy 16 bytes; zeros where there is nothing.
__device__ inline void copy_piece(void* shared, const void* global, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(tile_address(shared)), "l"(global), "r"(is_there ? 16 : 0) : "memory");
}

// Wait for a thread's copies, and let tensor cores see them.
__device__ inline void await_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
struct alignas(16) Piece { unsigned words[4]; };

// Word i of lane j of four neighbours becomes word j of lane i.
__device__ inline Piece across_lanes(const unsigned* words, int lane) {
    Piece half, whole;
    bool is_odd = lane & 1, is_high = lane & 2;
    #pragma unroll
    for (int i = 0; i < 4; i += 2) {
        unsigned other = __shfl_xor_sync(ALL_LANES, is_odd ? words[i] : words[i + 1], 1);
        half.words[i] = is_odd ? other : words[i];
        half.words[i + 1] = is_odd ? words[i + 1] : other;
    }
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        unsigned other = __shfl_xor_sync(ALL_LANES, is_high ? half.words[i] : half.words[i + 2], 2);
        whole.words[i] = is_high ? other : half.words[i];
        whole.words[i + 2] = is_high ? half.words[i + 2] : other;
    }
    return whole;
}

// Rows `first` to `first + 63` of x, zeros from `stop` on; the copies are under way afterwards.
template <int UNITS, int THREADS>
__device__ inline void load_tile(
    unsigned short* tile, const unsigned short* x, int64 first, int64 stop) {
    const int PIECES = UNITS / 8, ROWS = THREADS / PIECES;  // a multiple of 8 at a time
    int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    unsigned short* to = tile + piece / 8 * PANEL + row * 64 + (piece % 8 ^ row % 8) * 8;
    const unsigned short* from = x + (first + row) * UNITS + 8 * piece;
    int left = (int)least(stop - first, HEIGHT) - row;
    #pragma unroll
    for (int k = 0; k < HEIGHT; k += ROWS)
        if (k + row < HEIGHT || HEIGHT % ROWS == 0)
            copy_piece(to + k * 64, k < left ? from + k * UNITS : x, k < left);
}

// 16 rows as the first factor; zeros from `stop` on.
template <int UNITS>
__device__ inline void load_factor(
    unsigned (*out)[4], const unsigned short* x, int64 first, int64 stop) {
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int s = 0; s < UNITS / 16; ++s)
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            int64 row = first + lane / 4 + 8 * (i % 2);
            int unit = 16 * s + 2 * (lane % 4) + 8 * (i / 2);
            out[s][i] = row < stop ? *(const unsigned*)(x + row * UNITS + unit) : 0u;
        }
}

// The products of a tile and 16 rows, under way afterwards.
template <int UNITS>
__device__ inline void start_logits(
    float* z, const unsigned (*factor)[4], const unsigned short* tile) {
    #pragma unroll
    for (int i = 0; i < 32; ++i) z[i] = 0.0f;
    begin_products();
    #pragma unroll
    for (int s = 0; s < UNITS / 16; ++s) multiply_along(z, factor[s], tile, s);
    end_products();
}

// 64 labels more in the maxima and sums of two rows; all in units of log 2.
__device__ inline void add_logits(float* top, float* sum, float* z, const float* lift) {
    float higher[2] = {top[0], top[1]}, more[2] = {0.0f, 0.0f};
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
        z[i] = z[i] * LOG2E + lift[i / 4 * 8 + i % 2];
        higher[i / 2 % 2] = fmaxf(higher[i / 2 % 2], z[i]);
    }
    #pragma unroll
    for (int i = 0; i < 32; ++i) more[i / 2 % 2] += power_of_2(z[i] - higher[i / 2 % 2]);
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] = sum[h] * power_of_2(top[h] - higher[h]) + more[h];  // NaN stays
        top[h] = higher[h];
    }
}

// Maximum and sum of exponentials of hidden @ weight.T + bias over a chunk of labels, both
// (chunks, rows): a warp has 16 rows of the batch in registers, a tile is 64 labels. Products of
// the next tile are under way while exponentials of the last one are summed.
template <int UNITS, int THREADS>
__device__ void softmax_products_of(
    float* tops, float* sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, int64 labels, int64 rows, int64 chunk) {
    alignas(1024) __shared__ unsigned short tiles[2][HEIGHT * UNITS];
    __shared__ float lifts[2][HEIGHT];
    int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
    int64 row = (blockIdx.x * (int64)THREADS + threadIdx.x) / 32 * 16;
    int64 start = blockIdx.y * chunk, stop = least(start + chunk, labels);
    unsigned factor[UNITS / 16][4];
    load_factor<UNITS>(factor, hidden, row, rows);
    float top[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};  // finite: beyond labels there is -inf
    float z[2][32];
    auto load = [&](int slot, int64 label) {
        load_tile<UNITS, THREADS>(tiles[slot], weight, label, stop);
    };
    auto lift_of = [&](int64 label) {
        int64 at = label + threadIdx.x;
        return threadIdx.x < HEIGHT && at < stop ? bias[at] : -INF;
    };
    float lift = lift_of(start + HEIGHT);  // in time: of the tile after the next one
    load(0, start);
    if (threadIdx.x < HEIGHT) lifts[0][threadIdx.x] = lift_of(start) * LOG2E;
    await_copies();
    __syncthreads();
    load(1, start + HEIGHT);
    start_logits<UNITS>(z[0], factor, tiles[0]);
    await_products<0>();
    for (int64 label = start; label < stop;) {
        #pragma unroll
        for (int now = 0; now < 2; ++now, label += HEIGHT) {
            if (label >= stop) break;
            await_copies();
            __syncthreads();  // the next tile is there, and nobody needs the last one
            start_logits<UNITS>(z[now ^ 1], factor, tiles[now ^ 1]);
            load(now, label + 2 * HEIGHT);
            if (threadIdx.x < HEIGHT) lifts[now ^ 1][threadIdx.x] = lift * LOG2E;
            lift = lift_of(label + 2 * HEIGHT);
            add_logits(top, sum, z[now], lifts[now] + pair);
            await_products<0>();
        }
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        float highest = top[h];
        for (int step = 1; step < 4; step <<= 1)
            highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, step));
        float total = sum[h] * power_of_2(top[h] - highest);
        for (int step = 1; step < 4; step <<= 1)
            total += __shfl_xor_sync(ALL_LANES, total, step);
        int64 at = row + 8 * h + lane / 4;
        if (pair > 0 || at >= rows) continue;
        tops[blockIdx.y * rows + at] = highest * LN2;
        sums[blockIdx.y * rows + at] = total;
    }
}

// delta = exp(weight @ hidden.T + bias - shift), the sum over each label's row, and
// out = keep * out + factor * delta @ hidden: a warp has 16 labels in registers, a tile is 64 rows.
template <int UNITS, int THREADS>
__device__ void softmax_update_of(
    unsigned short* delta, float* out, float* row_sums, const unsigned short* hidden,
    const unsigned short* weight, const float* bias, const float* shift, int64 labels, int64 rows,
    int64 stride, const float* place, float of_place, float keep) {
    alignas(1024) __shared__ unsigned short tiles[2][HEIGHT * UNITS];
    __shared__ float shifts[2][HEIGHT];
    float factor = rate_of(place, of_place);
    int lane = threadIdx.x % 32, group = lane / 4, pair = 2 * (lane % 4);
    int64 label = (blockIdx.x * (int64)THREADS + threadIdx.x) / 32 * 16;
    unsigned first[UNITS / 16][4];
    load_factor<UNITS>(first, weight, label, labels);
    float lift[2], sum[2] = {0.0f, 0.0f}, product[UNITS / 2];
    #pragma unroll
    for (int h = 0; h < 2; ++h)
        lift[h] = label + 8 * h + group < labels ? bias[label + 8 * h + group] * LOG2E : -INF;
    #pragma unroll
    for (int i = 0; i < UNITS / 2; ++i) product[i] = 0.0f;
    // Four lanes have 16 rows of 2 labels, 32 bytes of each: a lane stores half of one's.
    int64 own = label + 8 * (lane % 2) + group;
    unsigned short* target = delta + own * stride;
    auto shift_of = [&](int64 row) {
        int64 at = row + threadIdx.x;
        return threadIdx.x < HEIGHT && at < rows ? shift[at] : INF;
    };
    load_tile<UNITS, THREADS>(tiles[0], hidden, 0, rows);
    if (threadIdx.x < HEIGHT) shifts[0][threadIdx.x] = shift_of(0) * LOG2E;
    float drop = shift_of(HEIGHT);  // in time: of the tile after the next one
    int now = 0;
    for (int64 row = 0; row < rows; row += HEIGHT, now ^= 1) {
        await_copies();
        __syncthreads();  // this tile is there, and nobody needs the last one
        if (row + HEIGHT < rows) {
            load_tile<UNITS, THREADS>(tiles[now ^ 1], hidden, row + HEIGHT, rows);
            if (threadIdx.x < HEIGHT) shifts[now ^ 1][threadIdx.x] = drop * LOG2E;
            drop = shift_of(row + 2 * HEIGHT);
        }
        float z[32];
        start_logits<UNITS>(z, first, tiles[now]);
        await_products<0>();
        unsigned slope[4][4];
        #pragma unroll
        for (int i = 0; i < 32; i += 2) {
            int h = i / 2 % 2, at = i / 4 * 8 + pair;
            float low = power_of_2(z[i] * LOG2E + (lift[h] - shifts[now][at]));
            float high = power_of_2(z[i + 1] * LOG2E + (lift[h] - shifts[now][at + 1]));
            sum[h] += low + high;
            slope[i / 8][i / 2 % 4] = two_halves(low, high);
        }
        begin_products();
        #pragma unroll
        for (int k = 0; k < 4; ++k) multiply_across<UNITS>(product, slope[k], tiles[now], k);
        end_products();
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            Piece piece = across_lanes(slope[k], lane);
            int64 at = row + 16 * k + lane / 2 % 2 * 8;
            if (at < stride && own < labels) *(Piece*)(target + at) = piece;
        }
        await_products<0>();
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        float total = sum[h];
        for (int step = 1; step < 4; step <<= 1)
            total += __shfl_xor_sync(ALL_LANES, total, step);
        int64 at = label + 8 * h + group;
        if (at >= labels) continue;
        if (pair == 0) row_sums[at] = total;
        Pair* place = (Pair*)(out + at * UNITS + pair);
        #pragma unroll
        for (int u = 0; u < UNITS / 8; ++u) {
            Pair old = {0.0f, 0.0f};
            if (keep != 0.0f) old = place[4 * u];
            old.low = keep * old.low + factor * product[4 * u + 2 * h];
            old.high = keep * old.high + factor * product[4 * u + 2 * h + 1];
            place[4 * u] = old;
        }
    }
}

KERNEL BOUNDS(256, 2) softmax_products_64(
    float* tops, float* sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, int64 labels, int64 rows, int64 chunk) {
    softmax_products_of<64, 256>(tops, sums, hidden, weight, bias, labels, rows, chunk);
}

KERNEL BOUNDS(256, 2) softmax_products_128(
    float* tops, float* sums, const unsigned short* hidden, const unsigned short* weight,
    const float* bias, int64 labels, int64 rows, int64 chunk) {
    softmax_products_of<128, 256>(tops, sums, hidden, weight, bias, labels, rows, chunk);
}

KERNEL BOUNDS(128, 3) softmax_update_64(
    unsigned short* delta, float* out, float* row_sums, const unsigned short* hidden,
    const unsigned short* weight, const float* bias, const float* shift, int64 labels, int64 rows,
    int64 stride, const float* place, float of_place, float keep) {
    softmax_update_of<64, 128>(
        delta, out, row_sums, hidden, weight, bias, shift, labels, rows, stride, place,
        of_place, keep);
}

KERNEL BOUNDS(128, 3) softmax_update_128(
    unsigned short* delta, float* out, float* row_sums, const unsigned short* hidden,
    const unsigned short* weight, const float* bias, const float* shift, int64 labels, int64 rows,
    int64 stride, const float* place, float of_place, float keep) {
    softmax_update_of<128, 128>(
        delta, out, row_sums, hidden, weight, bias, shift, labels, rows, stride, place,
        of_place, keep);
}
