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
//
// NVRTC has no headers, so this file includes none. xbench/kernels/wait.py launches the kernels, and knows HEADER_BYTES
// and how many threads a block of each has.

namespace {

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;
constexpr unsigned LONGEST_SLEEP_NS = 1000;
constexpr unsigned SHORTEST_SLEEP_NS = 32;

struct Meeting {
    unsigned long long deadline;
    unsigned int left;
};

constexpr int HEADER_BYTES = 128;  // of the scratch, the meeting's
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

}  // namespace

extern "C" {

__global__ void __launch_bounds__(32) wait_alone(unsigned long long ns) {
    if (threadIdx.x == 0) wait_until(now_ns() + ns);
}

// Block 0 waits, the others copy; the one that starts first sets the deadline of all. `scratch` begins on a multiple of
// 128 bytes, and has `lots` times 16 bytes behind its header, at least two for each block that copies.
__global__ void __launch_bounds__(THREADS)
wait_with_load(unsigned long long ns, char* scratch, unsigned long long lots) {
    Meeting* meeting = reinterpret_cast<Meeting*>(scratch);
    uint4* rest = reinterpret_cast<uint4*>(scratch + HEADER_BYTES);
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
        uint4* part = rest + (blockIdx.x - 1) * share;
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

// The smallest step of the clock seen in a few [ns].
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

}  // extern "C"
