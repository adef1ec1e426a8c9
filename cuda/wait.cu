// A wait on a stream, in place of a collective: what follows on the stream starts so many nanoseconds later.
//
// One warp reads the device's clock when it starts and ends when so much time has passed. Streams run their work first
// in, first out, so waits on one stream follow each other as collectives of one communicator do. The warp sleeps between
// looks at the clock and leaves its multiprocessor's issue slots to others.
//
// The clock is %globaltimer: nanoseconds, the same for all multiprocessors, but not advanced every nanosecond. Its step
// depends on the device and its driver (32 ns, 1 us, on some 1 ms), so a wait is right to within one step. The step is
// measured by xbench_timer_step, and whoever waits for less than many steps should look at it.
//
// A collective also takes memory bandwidth and multiprocessors. With `blocks` > 0 so many more blocks copy a scratch
// buffer to and fro until the same deadline: that of the block that started first, which the others find in the first
// bytes of the scratch. Those are zero before the first use and zero again when the last block leaves, so one scratch
// serves one stream.

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

namespace {

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;
constexpr unsigned LONGEST_SLEEP_NS = 1000;
constexpr unsigned SHORTEST_SLEEP_NS = 32;

struct Meeting {
    unsigned long long deadline;
    unsigned int left;
};

constexpr std::size_t HEADER_BYTES = 128;  // of the scratch, the meeting's
static_assert(sizeof(Meeting) <= HEADER_BYTES, "the meeting fits the header");

__device__ unsigned long long now_ns() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}

// A sleep of t ns ends within 2t, so half of what is left never oversleeps.
__device__ void sleep_towards(unsigned long long deadline, unsigned long long now) {
    const unsigned long long half = (deadline - now) / 2;
    if (half >= SHORTEST_SLEEP_NS) __nanosleep(half < LONGEST_SLEEP_NS ? static_cast<unsigned>(half) : LONGEST_SLEEP_NS);
}

__device__ void wait_until(unsigned long long deadline) {
    for (unsigned long long now = now_ns(); now < deadline; now = now_ns()) sleep_towards(deadline, now);
}

__global__ void __launch_bounds__(32) wait_alone(unsigned long long ns) {
    if (threadIdx.x == 0) wait_until(now_ns() + ns);
}

// Block 0 waits, the others copy; the one that starts first sets the deadline of all.
__global__ void __launch_bounds__(THREADS)
wait_with_load(unsigned long long ns, Meeting* meeting, uint4* scratch, unsigned long long lots) {
    __shared__ unsigned long long deadline;
    __shared__ bool over;
    if (threadIdx.x == 0) {
        const unsigned long long mine = now_ns() + ns;
        const unsigned long long first = atomicCAS(&meeting->deadline, 0ULL, mine);
        deadline = first == 0 ? mine : first;
    }
    __syncthreads();
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) wait_until(deadline);
    } else {
        // Each block has a part of its own, in two halves, and copies the first to the second and back.
        const unsigned long long share = lots / (gridDim.x - 1);
        const unsigned long long half = share / 2;
        uint4* part = scratch + (blockIdx.x - 1) * share;
        unsigned long long at = 0;
        bool back = false;
        while (true) {
            if (threadIdx.x == 0) over = now_ns() >= deadline;
            __syncthreads();
            if (over) break;
            const uint4* from = part + (back ? half : 0);
            uint4* to = part + (back ? 0 : half);
            uint4 held[IN_FLIGHT];
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i) {
                const unsigned long long lot = at + threadIdx.x + static_cast<unsigned long long>(i) * THREADS;
                if (lot < half) held[i] = from[lot];
            }
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i) {
                const unsigned long long lot = at + threadIdx.x + static_cast<unsigned long long>(i) * THREADS;
                if (lot < half) to[lot] = held[i];
            }
            at += IN_FLIGHT * THREADS;
            if (at >= half) {
                at = 0;
                back = !back;
            }
            __syncthreads();  // nobody writes `over` before all have read it
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&meeting->left, 1u) == gridDim.x - 1) {
        meeting->left = 0;
        meeting->deadline = 0;
    }
}

__global__ void __launch_bounds__(32) timer_step(unsigned long long* step_ns) {
    if (threadIdx.x != 0) return;
    unsigned long long least = ~0ULL, before = now_ns();
    for (int seen = 0; seen < 8;) {
        const unsigned long long now = now_ns();
        if (now == before) continue;
        if (now - before < least) least = now - before;
        before = now;
        ++seen;
    }
    *step_ns = least;
}

}  // namespace

extern "C" {

// All return a cudaError_t. `scratch` is the device's, begins on a multiple of 128 bytes, and may be null without blocks.

int xbench_wait(unsigned long long ns, int blocks, void* scratch, unsigned long long scratch_bytes, void* stream) {
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    if (blocks < 0) return static_cast<int>(cudaErrorInvalidValue);
    if (blocks == 0) {
        wait_alone<<<1, 32, 0, on>>>(ns);
        return static_cast<int>(cudaGetLastError());
    }
    if (scratch == nullptr || scratch_bytes < HEADER_BYTES + 2 * sizeof(uint4) * static_cast<std::size_t>(blocks)) {
        return static_cast<int>(cudaErrorInvalidValue);
    }
    const unsigned long long lots = (scratch_bytes - HEADER_BYTES) / sizeof(uint4);
    uint4* rest = reinterpret_cast<uint4*>(static_cast<char*>(scratch) + HEADER_BYTES);
    wait_with_load<<<static_cast<unsigned>(blocks) + 1, THREADS, 0, on>>>(
        ns, static_cast<Meeting*>(scratch), rest, lots);
    return static_cast<int>(cudaGetLastError());
}

// The smallest step of the clock seen in a few, to one unsigned 64-bit number on the device [ns].
int xbench_timer_step(unsigned long long* step_ns, void* stream) {
    timer_step<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(step_ns);
    return static_cast<int>(cudaGetLastError());
}

}  // extern "C"
