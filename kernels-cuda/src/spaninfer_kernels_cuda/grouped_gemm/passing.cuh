// Chunks passed through a ring of buffers by all threads of a block, which both copy and multiply.
//
// Needs copy.cuh.

// Calls `multiply(stage)` for each of `chunks` chunks, behind `copy(stage, chunk)`, which issues
// its copies (copy_16) kStages - 1 chunks ahead; a stage is a buffer of kStageBytes.
template <int kStages, int kStageBytes, typename Copy, typename Multiply>
__device__ __forceinline__ void pass_chunks(unsigned char* stages, int chunks, Copy copy,
                                            Multiply multiply) {
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < chunks) copy(stages + s * kStageBytes, s);
    commit_copies();
  }
  int full = 0, empty = kStages - 1;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    if (chunk + kStages - 1 < chunks) copy(stages + empty * kStageBytes, chunk + kStages - 1);
    commit_copies();
    multiply(stages + full * kStageBytes);
    full = full + 1 == kStages ? 0 : full + 1;
    empty = empty + 1 == kStages ? 0 : empty + 1;
  }
}
