// Gradients into and out of a bucket: one launch for many tensors, scaled, with a change of type where asked for.
//
// A bucket is one flat buffer. Tensor i has elements[i] elements, taken in memory order, and its slice of the bucket
// begins at offsets[i] elements. pack: slice = tensor * scale. unpack: tensor = slice * scale. The product is rounded
// to fp32 (fp64 for fp64), and from there to the destination's type, to nearest even, as torch.mul and copy_ do it one
// after the other; NaN stays NaN. A tensor may be its own slice.
//
// Gradients are freshly allocated in every step, so the table of their addresses travels with the launch, as a kernel
// parameter by value, and nothing is copied to the device beforehand. A table of FEW tensors fits the 4 KB of parameters
// of every launch, one of MANY the 32,764 bytes that CUDA allows from 12.1 on. Blocks find their tensor by binary search
// over the number of blocks before each.
//
// Where tensor and slice both begin on a multiple of 16 bytes, every access of the wider type is of 16 bytes, and
// neighbouring threads access neighbouring bytes: 64 bytes of the narrower type are in flight a thread. Elsewhere, and
// for the last few elements, accesses are element by element.
//
// NVRTC has no headers, so this file includes none and converts to and from 16 bits by itself. xbench/kernels/pack.py
// fills the tables, and knows THREADS, FEW, MANY, CHUNK and the kernels' names.

namespace {

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;
constexpr int WIDE = 16;  // bytes of one access
constexpr int FEW = 144;
constexpr int MANY = 1160;

template <int N>
struct Table {
    void* tensor[N];
    long long offset[N];
    long long elements[N];
    int first_block[N + 1];
    int count;
};

static_assert(sizeof(Table<FEW>) + 2 * sizeof(double) <= 4096, "the small table fits every launch");
static_assert(sizeof(Table<MANY>) + 2 * sizeof(double) <= 32764, "the large table fits a launch of CUDA 12.1");

struct Bf16 {
    unsigned short bits;
};
struct Fp16 {
    unsigned short bits;
};

#ifdef __CUDACC__  // a C++ compiler is given these two by whoever includes this file
__device__ float from_fp16(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ unsigned short to_fp16(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

__device__ float widened(float value) { return value; }
__device__ float widened(Bf16 value) { return __uint_as_float(static_cast<unsigned int>(value.bits) << 16); }
__device__ float widened(Fp16 value) { return from_fp16(value.bits); }
__device__ double widened(double value) { return value; }

template <typename T, typename Wide> __device__ T rounded(Wide value);
template <> __device__ float rounded<float>(float value) { return value; }
template <> __device__ Bf16 rounded<Bf16>(float value) {
    const unsigned int bits = __float_as_uint(value);
    const unsigned int nearest = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;  // a tie goes to the even one
    return {static_cast<unsigned short>(value == value ? nearest : 0x7fffU)};
}
template <> __device__ Fp16 rounded<Fp16>(float value) { return {to_fp16(value)}; }
template <> __device__ double rounded<double>(double value) { return value; }

template <typename From, typename To>
constexpr int WIDER = static_cast<int>(sizeof(From) < sizeof(To) ? sizeof(To) : sizeof(From));
template <typename From, typename To>
constexpr int NARROWER = static_cast<int>(sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));

// As many elements as fill one access of the wider type.
template <typename From, typename To>
constexpr int LOT = WIDE / WIDER<From, To>;

template <typename From, typename To>
constexpr int LOTS = IN_FLIGHT * WIDER<From, To> / NARROWER<From, To>;  // of one thread

template <typename From, typename To>
constexpr int CHUNK = THREADS * LOTS<From, To> * LOT<From, To>;  // elements of one block

template <int BYTES> struct Word;
template <> struct Word<16> { using type = uint4; };
template <> struct Word<8> { using type = uint2; };

// N elements in registers, loaded and stored in one access.
template <typename T, int N>
struct Lot {
    using Access = typename Word<N * static_cast<int>(sizeof(T))>::type;
    Access raw;

    __device__ void load(const T* from) { raw = *reinterpret_cast<const Access*>(from); }
    __device__ void store(T* to) const { *reinterpret_cast<Access*>(to) = raw; }
};

__device__ bool is_wide(const void* address) { return reinterpret_cast<unsigned long long>(address) % WIDE == 0; }

template <typename From, typename To, typename Scale>
__device__ void convey(const From* from, To* to, long long begin, long long end, Scale scale) {
    constexpr int N = LOT<From, To>;
    constexpr int COUNT = LOTS<From, To>;
    long long rest = begin;
    if (is_wide(from) && is_wide(to)) {
        Lot<From, N> lots[COUNT];
        const long long lane = begin + static_cast<long long>(threadIdx.x) * N;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const long long at = lane + static_cast<long long>(i) * THREADS * N;
            if (at + N <= end) lots[i].load(from + at);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const long long at = lane + static_cast<long long>(i) * THREADS * N;
            if (at + N <= end) {
                From source[N];
                To result[N];
                memcpy(source, &lots[i].raw, sizeof(source));
#pragma unroll
                for (int k = 0; k < N; ++k) result[k] = rounded<To>(widened(source[k]) * scale);
                Lot<To, N> out;
                memcpy(&out.raw, result, sizeof(result));
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
__device__ void move(const Table<N>& table, Flat* flat, Scale scale) {
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

}  // namespace

#define KERNEL(NAME, N, TENSOR, FLAT, PACK, SCALE)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                \
        NAME##_##N(const Table<N> __grid_constant__ table, FLAT* flat, SCALE scale) {                    \
        move<N, TENSOR, FLAT, PACK>(table, flat, scale);                                                 \
    }
#define KERNELS(NAMES, TENSOR, FLAT, SCALE)         \
    KERNEL(pack_##NAMES, FEW, TENSOR, FLAT, true, SCALE)    \
    KERNEL(pack_##NAMES, MANY, TENSOR, FLAT, true, SCALE)   \
    KERNEL(unpack_##NAMES, FEW, TENSOR, FLAT, false, SCALE) \
    KERNEL(unpack_##NAMES, MANY, TENSOR, FLAT, false, SCALE)

// pack_TENSOR_FLAT_FEW and so on, with torch's names of the types.
KERNELS(float32_float32, float, float, float)
KERNELS(float32_bfloat16, float, Bf16, float)
KERNELS(bfloat16_bfloat16, Bf16, Bf16, float)
KERNELS(float16_float16, Fp16, Fp16, float)
KERNELS(float64_float64, double, double, double)
