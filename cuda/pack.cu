// Gradients into and out of a bucket: one launch for many tensors, scaled, with a change of type where asked for.
//
// A bucket is one flat buffer. Tensor i has elements[i] elements, taken in memory order, and its slice of the bucket
// begins at offsets[i] elements. pack: slice = tensor * scale. unpack: tensor = slice * scale. The product is rounded
// to fp32 (fp64 for fp64), and from there to the destination's type, to nearest even, as torch.mul and copy_ do it one
// after the other; NaN stays NaN. A tensor may be its own slice.
//
// Gradients are freshly allocated in every step, so the table of their addresses travels with the launch, as a kernel
// parameter by value, and nothing is copied to the device beforehand. 4 KB of parameters always fit; toolkits from 12.1
// on take 32,764 bytes. Blocks find their tensor by binary search over the number of blocks before each.
//
// Where tensor and slice both begin on a multiple of 16 bytes every access is of 16 bytes, four in flight a thread;
// elsewhere, and for the last few elements, they are element by element.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;
constexpr int WIDE = 16;  // bytes of one access
constexpr int FEW = 144;
#if CUDART_VERSION >= 12010
constexpr int MANY = 1160;
constexpr int MOST_PARAMETER_BYTES = 32764;
#else
constexpr int MANY = FEW;
constexpr int MOST_PARAMETER_BYTES = 4096;
#endif

enum Kind { FP32 = 0, BF16 = 1, FP16 = 2, FP64 = 3 };  // as xbench/kernels/pack.py counts them

template <int N>
struct Table {
    void* tensor[N];
    long long offset[N];
    long long elements[N];
    int first_block[N + 1];
    int count;
};

static_assert(sizeof(Table<FEW>) + 2 * sizeof(double) <= 4096, "the small table fits every toolkit");
static_assert(sizeof(Table<MANY>) + 2 * sizeof(double) <= MOST_PARAMETER_BYTES, "the large table fits this toolkit");

template <typename T> struct Arithmetic { using type = float; };
template <> struct Arithmetic<double> { using type = double; };

__device__ float widened(float value) { return value; }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widened(__half value) { return __half2float(value); }
__device__ double widened(double value) { return value; }

template <typename T, typename Wide> __device__ T rounded(Wide value);
template <> __device__ float rounded<float>(float value) { return value; }
template <> __device__ __nv_bfloat16 rounded<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }
template <> __device__ __half rounded<__half>(float value) { return __float2half_rn(value); }
template <> __device__ double rounded<double>(double value) { return value; }

// As many elements as fill one access of the narrower type.
template <typename From, typename To>
constexpr int LOT = WIDE / static_cast<int>(sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));

template <typename From, typename To>
constexpr int CHUNK = THREADS * IN_FLIGHT * LOT<From, To>;  // elements of one block

// LOT elements in registers, loaded and stored 16 bytes at a time.
template <typename T, int N>
struct Lot {
    static constexpr int ACCESSES = N * static_cast<int>(sizeof(T)) / WIDE;
    uint4 raw[ACCESSES];

    __device__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < ACCESSES; ++i) raw[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    __device__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < ACCESSES; ++i) reinterpret_cast<uint4*>(to)[i] = raw[i];
    }
};

__device__ bool is_wide(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % WIDE == 0; }

template <typename From, typename To, typename Scale>
__device__ void convey(const From* from, To* to, long long begin, long long end, Scale scale) {
    constexpr int N = LOT<From, To>;
    long long rest = begin;
    if (is_wide(from) && is_wide(to)) {
        Lot<From, N> lots[IN_FLIGHT];
        const long long lane = begin + static_cast<long long>(threadIdx.x) * N;
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const long long at = lane + static_cast<long long>(i) * THREADS * N;
            if (at + N <= end) lots[i].load(from + at);
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const long long at = lane + static_cast<long long>(i) * THREADS * N;
            if (at + N <= end) {
                From source[N];
                To result[N];
                memcpy(source, lots[i].raw, sizeof(source));
#pragma unroll
                for (int k = 0; k < N; ++k) result[k] = rounded<To>(widened(source[k]) * scale);
                Lot<To, N> out;
                memcpy(out.raw, result, sizeof(result));
                out.store(to + at);
            }
        }
        rest = begin + (end - begin) / N * N;
    }
    for (long long at = rest + threadIdx.x; at < end; at += THREADS) to[at] = rounded<To>(widened(from[at]) * scale);
}

template <int N>
__device__ int tensor_of(const Table<N>& table, int block) {
    int low = 0, high = table.count;  // the last place whose first block is not after this one; empty tensors have none
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (table.first_block[middle] <= block) low = middle; else high = middle;
    }
    return low;
}

template <int N, typename Tensor, typename Flat, bool PACK, typename Scale>
__global__ void __launch_bounds__(THREADS) move(const __grid_constant__ Table<N> table, Flat* flat, Scale scale) {
    const int block = static_cast<int>(blockIdx.x);
    const int place = tensor_of(table, block);
    Tensor* tensor = static_cast<Tensor*>(table.tensor[place]);
    Flat* slice = flat + table.offset[place];
    const long long begin = static_cast<long long>(block - table.first_block[place]) * CHUNK<Tensor, Flat>;
    const long long whole = table.elements[place];
    const long long end = begin + CHUNK<Tensor, Flat> < whole ? begin + CHUNK<Tensor, Flat> : whole;
    if constexpr (PACK) {
        convey(static_cast<const Tensor*>(tensor), slice, begin, end, scale);
    } else {
        convey(static_cast<const Flat*>(slice), tensor, begin, end, scale);
    }
}

// What a call is given: arrays of `count` on the host.
struct Call {
    void* const* tensors;
    const long long* elements;
    const long long* offsets;
    int count;
    void* flat;
    double scale;
    cudaStream_t stream;
};

template <int N, typename Tensor, typename Flat, bool PACK>
cudaError_t launch(const Call& call, int from, int count) {
    using Scale = typename Arithmetic<Tensor>::type;
    Table<N> table;
    long long blocks = 0;
    for (int i = 0; i < count; ++i) {
        table.tensor[i] = call.tensors[from + i];
        table.offset[i] = call.offsets[from + i];
        table.elements[i] = call.elements[from + i];
        table.first_block[i] = static_cast<int>(blocks);
        blocks += (call.elements[from + i] + CHUNK<Tensor, Flat> - 1) / CHUNK<Tensor, Flat>;
        if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    }
    table.first_block[count] = static_cast<int>(blocks);
    table.count = count;
    if (blocks == 0) return cudaSuccess;
    move<N, Tensor, Flat, PACK, Scale><<<static_cast<unsigned>(blocks), THREADS, 0, call.stream>>>(
        table, static_cast<Flat*>(call.flat), static_cast<Scale>(call.scale));
    return cudaGetLastError();
}

template <typename Tensor, typename Flat, bool PACK>
cudaError_t move_all(const Call& call) {
    for (int from = 0; from < call.count;) {
        const int left = call.count - from;
        const int count = left < MANY ? left : MANY;
        const cudaError_t error = count <= FEW ? launch<FEW, Tensor, Flat, PACK>(call, from, count)
                                               : launch<MANY, Tensor, Flat, PACK>(call, from, count);
        if (error != cudaSuccess) return error;
        from += count;
    }
    return cudaSuccess;
}

template <bool PACK>
cudaError_t dispatch(const Call& call, int tensor_kind, int flat_kind) {
    if (tensor_kind == FP32 && flat_kind == FP32) return move_all<float, float, PACK>(call);
    if (tensor_kind == FP32 && flat_kind == BF16) return move_all<float, __nv_bfloat16, PACK>(call);
    if (tensor_kind == BF16 && flat_kind == BF16) return move_all<__nv_bfloat16, __nv_bfloat16, PACK>(call);
    if (tensor_kind == FP16 && flat_kind == FP16) return move_all<__half, __half, PACK>(call);
    if (tensor_kind == FP64 && flat_kind == FP64) return move_all<double, double, PACK>(call);
    return cudaErrorInvalidValue;
}

}  // namespace

extern "C" {

// All return a cudaError_t. Addresses are the device's, the arrays of them the host's.

int xbench_pack(void* const* tensors, const long long* elements, const long long* offsets, int count, void* flat,
                int tensor_kind, int flat_kind, double scale, void* stream) {
    const Call call{tensors, elements, offsets, count, flat, scale, static_cast<cudaStream_t>(stream)};
    return static_cast<int>(dispatch<true>(call, tensor_kind, flat_kind));
}

int xbench_unpack(void* const* tensors, const long long* elements, const long long* offsets, int count, void* flat,
                  int tensor_kind, int flat_kind, double scale, void* stream) {
    const Call call{tensors, elements, offsets, count, flat, scale, static_cast<cudaStream_t>(stream)};
    return static_cast<int>(dispatch<false>(call, tensor_kind, flat_kind));
}

// Whether the current device can run what was compiled here.
int xbench_ready() {
    cudaFuncAttributes attributes;
    return static_cast<int>(cudaFuncGetAttributes(&attributes, move<MANY, float, float, true, float>));
}

}  // extern "C"
