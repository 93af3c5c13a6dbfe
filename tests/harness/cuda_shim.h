// What CUDA offers to a kernel, for a host compiler: every thread of a block is a fiber, which runs
// until it waits for others, in an order that can be chosen. Blocks run one after the other. Where
// a kernel forgets to wait, or leaves others waiting, another order shows it.
#undef _FORTIFY_SOURCE  // whose longjmp takes another fiber's stack for an error
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace shim {

enum Problem { NONE, STUCK, PARTIAL_WARP };

struct Barrier {
    int alive = 0, arrived = 0, passed = 0;
    void release() { if (arrived == alive && alive > 0) arrived = 0, ++passed, ++*progress(); }
    static long* progress() { static long count; return &count; }
};

// It stays for the next block: only its first step asks the operating system for anything.
struct Fiber { jmp_buf place; std::vector<char> stack; bool is_made, is_done; Dim index; };

static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static void (*kernel)(void*);
static void* operands;
static int current, problem;
static Barrier block;
static Barrier warps[32];
static long long exchanged[1024];

inline void select(int i) { current = i; threadIdx = fibers[i].index; }
inline void rest() {
    int i = current;
    if (!_setjmp(fibers[i].place)) _longjmp(scheduler, 1);
    select(i);
}

inline void wait(Barrier& barrier) {
    int before = barrier.passed;
    ++barrier.arrived;
    barrier.release();
    while (barrier.passed == before) rest();
}

// A warp operation: every lane puts a value down, all wait, every lane takes one.
template <class T>
T exchange(T value, int source) {
    Barrier& warp = warps[current / 32];
    if (warp.alive != 32) problem = PARTIAL_WARP;
    std::memcpy(&exchanged[current], &value, sizeof(T));
    wait(warp);
    T found;
    std::memcpy(&found, &exchanged[current / 32 * 32 + source], sizeof(T));
    wait(warp);
    return found;
}

inline void body() {
    for (int own = current;; rest()) {
        kernel(operands);
        fibers[own].is_done = true;
        for (Barrier* barrier : {&block, &warps[own / 32]}) --barrier->alive, barrier->release();
        ++*Barrier::progress();
    }
}

// makecontext passes no arguments: what a fiber does is in `kernel` and `operands`.
inline void start(Fiber& fiber) {
    static ucontext_t context;
    fiber.is_made = true;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.data();
    context.uc_stack.ss_size = fiber.stack.size();
    context.uc_link = nullptr;
    makecontext(&context, body, 0);
    setcontext(&context);
}

inline void step(int i) {
    select(i);
    if (_setjmp(scheduler)) return;
    if (fibers[i].is_made) _longjmp(fibers[i].place, 1);
    start(fibers[i]);
}

inline void run_block(int threads, int order) {
    block = Barrier();
    block.alive = threads;
    for (Barrier& warp : warps) warp = Barrier();
    std::vector<int> turns(threads);
    for (int i = 0; i < threads; ++i) {
        ++warps[i / 32].alive;
        Fiber& fiber = fibers[i];
        fiber.is_made = fiber.is_made && fiber.is_done;  // else left in the midst of a kernel
        fiber.is_done = false;
        fiber.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
        turns[i] = order == 1 ? threads - 1 - i : i;
    }
    auto resume = [&](int first, int last) {  // whether any thread was left
        bool is_any = false;
        for (int place = first; place < last; ++place) {
            int i = turns[place];
            if (fibers[i].is_done) continue;
            is_any = true;
            step(i);
        }
        return is_any;
    };
    unsigned state = 1;
    for (bool is_left = true; is_left && !problem;) {
        long before = *Barrier::progress();
        if (order == 2)
            for (int i = threads - 1; i > 0; --i)
                std::swap(turns[i], turns[(state = state * 1664525u + 1013904223u) % (i + 1)]);
        if (order == 1 || order == 3)  // warp by warp, each as far as it gets
            for (int warp = 0; warp < threads; warp += 32)
                for (long last = -1; last != *Barrier::progress() && !problem;) {
                    last = *Barrier::progress();
                    resume(warp, std::min(warp + 32, threads));
                }
        is_left = resume(0, threads);
        if (is_left && *Barrier::progress() == before) problem = STUCK;
    }
}

inline int run_blocks(const unsigned* sizes, int order) {
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    int threads = blockDim.x * blockDim.y * blockDim.z, blocks = gridDim.x * gridDim.y;
    if ((int)fibers.size() < threads) fibers.resize(threads);
    for (Fiber& fiber : fibers) fiber.stack.resize(1 << 16);
    problem = NONE;
    for (int b = 0; b < blocks && !problem; ++b) {
        unsigned i = order == 1 ? blocks - 1 - b : b;
        blockIdx = {i % gridDim.x, i / gridDim.x, 0};
        run_block(threads, order);
    }
    return problem;
}

template <class... P>
int run(void (*function)(P...), void** arguments, const unsigned* sizes, int order) {
    int place = 0;
    std::tuple<P...> values{*(P*)arguments[place++]...};
    auto call = [&] { std::apply(function, values); };
    kernel = [](void* given) { (*(decltype(call)*)given)(); };
    operands = &call;
    return run_blocks(sizes, order);
}

template <class T> struct Code;
template <> struct Code<int> { static std::string text() { return "i4"; } };
template <> struct Code<unsigned> { static std::string text() { return "u4"; } };
template <> struct Code<long long> { static std::string text() { return "i8"; } };
template <> struct Code<unsigned long long> { static std::string text() { return "u8"; } };
template <> struct Code<float> { static std::string text() { return "f4"; } };
template <> struct Code<double> { static std::string text() { return "f8"; } };
template <> struct Code<unsigned short> { static std::string text() { return "u2"; } };
template <> struct Code<unsigned char> { static std::string text() { return "u1"; } };
template <class T> struct Code<const T> { static std::string text() { return Code<T>::text(); } };
template <class T> struct Code<T*> { static std::string text() { return "*" + Code<T>::text(); } };

template <class... P> const char* signature(void (*)(P...)) {
    static std::string text = ((Code<P>::text() + " ") + ...);
    return text.c_str();
}

}  // namespace shim

#define EMULATE(name)                                                                       \
    extern "C" const char* signature_##name() { return shim::signature(name); }             \
    extern "C" int run_##name(void** arguments, const unsigned* sizes, int order) {         \
        return shim::run(name, arguments, sizes, order);                                    \
    }

inline void __syncthreads() { shim::wait(shim::block); }
inline void __syncwarp() { shim::exchange(0, 0); }
template <class T> T __shfl_sync(unsigned, T value, int lane) { return shim::exchange(value, lane); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    return shim::exchange(value, (shim::current % 32) ^ mask);
}
template <class T> T __shfl_up_sync(unsigned, T value, int step) {
    int lane = shim::current % 32;
    return shim::exchange(value, lane >= step ? lane - step : lane);
}
inline int __any_sync(unsigned, int value) {
    int any = 0;
    for (int lane = 0; lane < 32; ++lane) any |= shim::exchange(value, lane);
    return any != 0;
}

inline unsigned __ballot_sync(unsigned, int value) {
    unsigned lanes = 0;
    for (int lane = 0; lane < 32; ++lane) lanes |= (unsigned)(shim::exchange(value, lane) != 0) << lane;
    return lanes;
}

inline float __expf(float x) { return expf(x); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline float __int_as_float(int bits) { return __uint_as_float(bits); }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }

template <class T> T atomicAdd(T* at, T value) { T old = *at; *at += value; return old; }
template <class T> T atomicCAS(T* at, T expected, T value) {
    T old = *at;
    if (old == expected) *at = value;
    return old;
}
template <class T> T atomicMax(T* at, T value) { T old = *at; *at = std::max(old, value); return old; }
template <class T> T atomicOr(T* at, T value) { T old = *at; *at |= value; return old; }
template <class T> T atomicExch(T* at, T value) { T old = *at; *at = value; return old; }

// What fused.cu has in a GPU's own words: copies that are done at once, and products of a warp's 16
// rows by a tile, whose numbers its lanes hold together.
inline float half_value(unsigned short half);
inline unsigned short half_bits(float value);

inline void make_barrier(unsigned long long*) {}
inline void copy_tile(void* shared, const void* global, int bytes, unsigned long long*) {
    std::memcpy(shared, global, bytes);
}
inline void await_tile(unsigned long long*, int) {}
inline void begin_products() {}
inline void end_products() {}
template <int GROUPS> void await_products() {}
inline float power_of_2(float x) { return exp2f(x); }
inline unsigned two_halves(float low, float high) {
    return half_bits(low) | (unsigned)half_bits(high) << 16;
}

namespace shim {

// `second(k, column)` is the tile's factor; every lane adds to its own numbers of the product.
template <class F> void multiply(float* d, const unsigned* a, int columns, F second) {
    static unsigned factors[1024][4];
    std::memcpy(factors[current], a, sizeof(factors[0]));
    __syncwarp();
    int lane = current % 32, warp = current - lane;
    for (int i = 0; i < columns / 2; ++i) {
        int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) {
            unsigned word = factors[warp + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            sum += half_value((unsigned short)(k % 2 ? word >> 16 : word)) * second(k, column);
        }
        d[i] += sum;
    }
    __syncwarp();
}

// A tile of 64 rows: panels of 64 columns, pieces of 8 numbers reordered in each row.
inline float tile_value(const unsigned short* tile, int row, int column) {
    int piece = (column % 64 / 8) ^ (row % 8);
    return half_value(tile[column / 64 * 4096 + row * 64 + piece * 8 + column % 8]);
}

}  // namespace shim

inline void multiply_along(float* d, const unsigned* a, const unsigned short* tile, int step) {
    shim::multiply(d, a, 64, [&](int k, int column) {
        return shim::tile_value(tile, column, 16 * step + k);
    });
}
template <int UNITS>
void multiply_across(float* d, const unsigned* a, const unsigned short* tile, int step) {
    shim::multiply(d, a, UNITS, [&](int k, int column) {
        return shim::tile_value(tile, 16 * step + k, column);
    });
}
