// Transposition among the four lanes that share a row of a C fragment (mma.cuh).

// Lane t of four gives piece t of each of four vectors, and gets vector t.
__device__ __forceinline__ uint4 vector_of_quad(const unsigned (&pieces)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  unsigned of[2][2];  // two adjacent pieces of vector 0 or 1, then of vector 2 or 3
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned first = pieces[2 * half], second = pieces[2 * half + 1];
    const unsigned got = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    of[half][0] = odd ? got : first;
    of[half][1] = odd ? second : got;
  }
  unsigned got[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    got[i] = __shfl_xor_sync(0xffffffffu, upper ? of[0][i] : of[1][i], 2);
  }
  if (upper) return make_uint4(got[0], got[1], of[1][0], of[1][1]);
  return make_uint4(of[0][0], of[0][1], got[0], got[1]);
}
