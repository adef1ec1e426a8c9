// What a cudaError_t that the other files return means, in words.

#include <cuda_runtime.h>

extern "C" const char* xbench_error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
