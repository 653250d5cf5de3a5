// Seeded Gumbel-max sampling among the tokens of a row, with a filter for those that can still win.

struct Four {
  unsigned word[4];

  __device__ __forceinline__ unsigned of(int id) const {
    const unsigned even = id & 2 ? word[2] : word[0], odd = id & 2 ? word[3] : word[1];
    return id & 1 ? odd : even;
  }
};

// Philox4x32-10 (Salmon et al. 2011) of the counter [block, 0, position, 0].
__device__ __forceinline__ Four philox(unsigned long long seed, unsigned position, unsigned block) {
  unsigned x0 = block, x1 = 0, x2 = position, x3 = 0;
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long left = 0xD2511F53ull * x0, right = 0xCD9E8D57ull * x2;
    x0 = static_cast<unsigned>(right >> 32) ^ x1 ^ k0;
    x1 = static_cast<unsigned>(right);
    x2 = static_cast<unsigned>(left >> 32) ^ x3 ^ k1;
    x3 = static_cast<unsigned>(left);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{x0, x1, x2, x3}};
}

// Gumbel-max sampling of a row, as an exponential race. Token i's time is E_i / p_i, E_i = -log(1 -
// u_i); its score, the logarithm of the reciprocal, is x_i / temperature - log(E_i). The largest
// score wins.
struct GumbelMax {
  unsigned long long seed;
  unsigned position;
  double inverse;  // of the temperature
  float bits_per_x;

  __device__ __forceinline__ GumbelMax(const SamplingParams& params, int position)
      : seed(params.seed),
        position(position),
        inverse(1.0 / params.temperature),
        bits_per_x(kBitsPerNat / params.temperature) {}

  // Enters the token of a key into the race.
  __device__ __forceinline__ void enter(Key key, Best& best) const {
    const int id = id_of(key);
    const unsigned word = philox(seed, position, static_cast<unsigned>(id) / 4).of(id);
    const float number = static_cast<float>((word + 0.5) * 0x1p-32);
    const double u = fminf(number, 1.0f - 0x1p-24f);
    const double score = value_of(key) * inverse - log(-log1p(-u));
    if (score > best.score || (score == best.score && id < best.id)) best = {score, id};
  }

  // Lists those of kVector adjacent tokens, from the floor on, that can still win. E > u, so a
  // token whose u exceeds the E that it would need is rejected at once.
  __device__ __forceinline__ void filter(const Neighbours& here, const Floor& floor,
                                         Shared& shared) const {
    const int ordered = *static_cast<volatile int*>(&shared.reach);
    const float least = __int_as_float(ordered ^ signs(__int_as_float(ordered)));
#pragma unroll
    for (int block = 0; block < kVector; block += 4) {
      const int first = here.first + block;
      float room[4], most = 0.0f;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float x = here.x[block + v];
        const bool takes_part = floor.admits(x, first + v);
        room[v] = takes_part ? exp2_fast(fmaf(x, bits_per_x, -least)) : 0.0f;
        most = fmaxf(most, room[v]);
      }
      if (most < 0x1p-34f) continue;  // the smallest u is 2^-33
      const Four four = philox(seed, position, first / 4);
      unsigned hits = 0;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float one_and_u = __uint_as_float(four.word[v] >> 9 | 0x3f800000u);  // rounded down
        if (room[v] > 0.0f && one_and_u <= 1.0f + room[v]) hits |= 1u << v;
      }
#pragma unroll 1
      while (hits != 0) {
        const int v = __ffs(hits) - 1;
        hits &= hits - 1;
        const float x = here.at(block + v);
        const int slot = take(&shared.count);
        if (slot < kList) shared.list[slot] = key_of(x, first + v);
        surpass(least_score(x, four.of(v)), shared);
      }
    }
  }

  // Finds a score that is surpassed, so that only few tokens are listed, from one token of each
  // thread of the block.
  __device__ __forceinline__ void warm_up(const Row& row, const Floor& floor,
                                          Shared& shared) const {
    const int id = static_cast<int>(rank_in_cluster() * kThreads + threadIdx.x) * kVector;
    float bits = -kInfinity;
    if (id < row.length) {
      const float x = row.read(id);
      if (floor.admits(x, id)) bits = least_score(x, philox(seed, position, id / 4).word[0]);
    }
    bits = lanes_max<kWarp>(bits);
    if (threadIdx.x == 0) shared.reach = __float_as_int(-kInfinity) ^ 0x7fffffff;
    __syncthreads();
    if (threadIdx.x % kWarp == 0) surpass(bits, shared);
    __syncthreads();
  }

 private:
  // A lower bound of a token's score in bits: E < u / (1 - u).
  __device__ __forceinline__ float least_score(float x, unsigned word) const {
    const float u = (word + 0.5f) * 0x1p-32f;
    return x * bits_per_x + __log2f((1.0f - u) / u);
  }

  // Excludes tokens whose score is below these bits, a score that some token surpasses.
  __device__ __forceinline__ static void surpass(float bits, Shared& shared) {
    // 2^-22 of the largest number involved is more than the rounding of `room`.
    const float least = bits - (1e-3f + 0x1p-22f * (fabsf(bits) + 40.0f));
    if (bits > -kInfinity) atomicMax(&shared.reach, __float_as_int(least) ^ signs(least));
  }

  // All bits but the first where x is negative: floats then compare as integers do.
  __device__ __forceinline__ static int signs(float x) {
    return static_cast<int>(static_cast<unsigned>(__float_as_int(x) >> 31) >> 1);
  }
};
