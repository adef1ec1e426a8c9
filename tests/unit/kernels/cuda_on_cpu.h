// CUDA's words for a C++ compiler, so that the device code of a .cu file runs on a CPU as it is: a launch is a loop over
// blocks and threads. Threads cannot wait for each other, so there is no __shared__ and no __syncthreads.

#include <cmath>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __grid_constant__ &  // a kernel's parameter by value becomes one by reference: no thread may write to it

namespace {

struct Place {
    unsigned int x;
} blockIdx, threadIdx;

struct __attribute__((may_alias, aligned(16))) uint4 {
    unsigned int x, y, z, w;
};
struct __attribute__((may_alias, aligned(8))) uint2 {
    unsigned int x, y;
};

unsigned int __float_as_uint(float value) {
    unsigned int bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

float __uint_as_float(unsigned int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// IEEE 754's binary16: 1 + 5 + 10 bits, whose exponent is 15 too large.
float from_fp16(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(1024.0f + fraction, exponent - 25);
    if (exponent == 31) size = fraction == 0 ? INFINITY : NAN;
    return bits >> 15 ? -size : size;
}

unsigned short to_fp16(float value) {
    const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (size != size) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | static_cast<unsigned short>(std::nearbyint(size * 0x1p24f));
    int exponent;
    std::frexp(size, &exponent);  // size = f * 2^exponent, f in [0.5, 1)
    const int units = static_cast<int>(std::nearbyint(std::ldexp(size, 11 - exponent)));
    return sign | static_cast<unsigned short>(((exponent + 14) << 10) + units - 1024);  // 2048 units carry over
}

template <typename Number>
void run(void (*kernel)(const void*, void*, Number), int blocks, int threads, const void* table, void* flat, Number n) {
    for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        for (int thread = 0; thread < threads; ++thread) {
            threadIdx.x = thread;
            kernel(table, flat, n);
        }
    }
}

}  // namespace

extern "C" {

void run_float(void (*kernel)(const void*, void*, float), int blocks, int threads, const void* table, void* flat, float n) {
    run(kernel, blocks, threads, table, flat, n);
}

void run_double(
    void (*kernel)(const void*, void*, double), int blocks, int threads, const void* table, void* flat, double n) {
    run(kernel, blocks, threads, table, flat, n);
}

}  // extern "C"
