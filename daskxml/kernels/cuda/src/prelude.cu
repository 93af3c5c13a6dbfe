// Shared by all kernels. No headers: the run-time compiler (NVRTC) has none by itself.
// Sums are formed in an order that depends on the launch only: equal bits each time.

typedef long long int64;
typedef unsigned long long uint64;

#define KERNEL extern "C" __global__ void
// Threads of a block, and blocks of a multiprocessor: registers are spared accordingly.
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define ALL_LANES 0xffffffffu
#define INF __int_as_float(0x7f800000)
// For every i below n, for any number of blocks.
#define EACH(i, n)                                                          \
    for (int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x; i < (n);   \
         i += (int64)gridDim.x * blockDim.x)

__device__ inline int64 least(int64 a, int64 b) { return a < b ? a : b; }

// A factor of a number in device memory, or, without one, the factor itself.
__device__ inline float rate_of(const float* place, float factor) {
    return place ? *place * factor : factor;
}

// Number `index` of SplitMix64's stream `key` (Steele, Lea and Flood 2014).
__device__ inline uint64 hash64(uint64 key, uint64 index) {
    uint64 z = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Whether dropout keeps entry `counter`; everything where the limit is 0.
__device__ inline bool is_kept(uint64 key, uint64 counter, uint64 limit) {
    return limit == 0 || (hash64(key, counter) >> 32) >= limit;
}

// The sum over a warp, in every lane.
template <class T>
__device__ inline T warp_sum(T value) {
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// The sum over the lanes before this one.
__device__ inline int warp_before(int value) {
    int sum = value, lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step <<= 1) {
        int left = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += left;
    }
    return sum - value;
}

// The sum over a block of whole warps, in every thread.
template <class T>
__device__ inline T block_sum(T value) {
    __shared__ T parts[32];
    T sum = warp_sum(value), total = 0;
    __syncthreads();  // others may still read the parts of the call before
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; ++warp) total += parts[warp];
    return total;
}

// The sum over the threads before this one; `total` is that of the block.
__device__ inline int block_before(int value, int* total) {
    __shared__ int parts[32];
    int before = warp_before(value), warp = threadIdx.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 31) parts[warp] = before + value;
    __syncthreads();
    *total = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) {
        if (w < warp) before += parts[w];
        *total += parts[w];
    }
    return before;
}
