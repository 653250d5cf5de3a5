// A row that is read several times.

// The packs of a row that a thread of a block reads, kept in the block's shared memory from the
// first pass on, with a mask applied: later passes read neither global memory nor the mask. Where
// they do not fit, or hold processed values, which T may not represent, every pass reads the row.
struct HeldRow {
  const Row& row;
  Shared& shared;
  unsigned begin, end;  // of the thread's packs, which lie kThreads apart, and of the block's
  bool is_held;

  __device__ __forceinline__ HeldRow(const Row& row, Shared& shared, unsigned share)
      : row(row), shared(shared) {
    const unsigned first = rank_in_cluster() * share;
    begin = first + threadIdx.x;
    end = min(first + share, packs_of(row.length));
    is_held =
        row.changed == nullptr && (share + kThreads - 1) / kThreads <= packs_in_shared_memory();
  }

  // The packs of a block. Blocks have equally many: a row of 152,000 tokens has 1.2 or 2.3 for each
  // thread, and were all threads of some blocks to have one more, the others would wait for them.
  __device__ __forceinline__ static unsigned share_of(int length) {
    const unsigned blocks = blocks_of_cluster();
    return (packs_of(length) + blocks - 1) / blocks;
  }

  // To be called where passes over `row` itself have overwritten its packs.
  __device__ __forceinline__ void let_go() { is_held = false; }

  // The first pass: calls visit(value, id) for each element of this block's; returns the worst
  // Status among this thread's.
  template <typename Visit>
  __device__ __forceinline__ int load(Visit visit) const {
    if (agreed(!is_held)) {
      return each_of_row(visit);
    }
    const bool is_aligned = reinterpret_cast<size_t>(row.raw) % 16 == 0;
    const auto is_whole = [&](int first) { return is_aligned && first + kVector <= row.length; };
    Pack<T, kVector>* at = own();
#pragma unroll 1
    for (unsigned pack = begin; pack < end; pack += kThreads, at += kThreads) {
      const int first = static_cast<int>(pack * kVector);
      if (is_whole(first)) copy_16(at, row.raw + first, true);
    }
    commit_copies();
    wait_for_copies<0>();
    int worst = kSampled;
    at = own();
#pragma unroll 1
    for (unsigned pack = begin; pack < end; pack += kThreads, at += kThreads) {
      const int first = static_cast<int>(pack * kVector);
      float x[kVector];
      const Pack<T, kVector> copied = *at;
#pragma unroll
      for (int v = 0; v < kVector; ++v) x[v] = to_float(copied.at[v]);
      if (!is_whole(first)) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          x[v] = first + v < row.length ? to_float(row.raw[first + v]) : -kInfinity;
        }
      }
      worst = max(worst, Row::worst_of(x));
      if (row.allowed) row.replace(first, x);
      if (row.allowed || !is_whole(first)) {
        Pack<T, kVector> here;
#pragma unroll
        for (int v = 0; v < kVector; ++v) here.at[v] = from_float<T>(x[v]);
        *at = here;
      }
#pragma unroll
      for (int v = 0; v < kVector; ++v) visit(x[v], first + v);
    }
    return worst;
  }

  // A later pass: calls visit(value, id, is_held): of a constant, what it decides is
  // decided when the loop is compiled.
  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
    if (agreed(!is_held)) {
      each_of_row([&](float x, int id) { visit(x, id, false); });
      return;
    }
    const Pack<T, kVector>* at = own();
#pragma unroll 1
    for (unsigned pack = begin; pack < end; pack += kThreads, at += kThreads) {
      // By fours: registers are scarce.
#pragma unroll 1
      for (int begin = 0; begin < kVector; begin += 4) {
        const Pack<T, 4> here = *reinterpret_cast<const Pack<T, 4>*>(&at->at[begin]);
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int id = static_cast<int>(pack * kVector) + begin + v;
          visit(to_float(here.at[v]), id, true);
        }
      }
    }
  }

  // Writes what is kept, each block its own: a row of whole packs in which the other elements are
  // -inf, or if the row is processed, a bit per token: T may not represent its values. Of an
  // element, keeps(value, id, is_held) says whether it is.
  template <typename Keeps>
  __device__ __forceinline__ void write_kept(void* kept, Keeps keeps) const {
    if (agreed(row.is_processed())) {
      write_words(static_cast<unsigned*>(kept), keeps);
    } else if (agreed(is_held)) {
      write_packs<true>(static_cast<T*>(kept), keeps);
    } else {
      write_packs<false>(static_cast<T*>(kept), keeps);
    }
  }

 private:
  __device__ __forceinline__ static unsigned packs_of(int length) {
    return (length + kVector - 1) / kVector;
  }
  template <typename Visit>
  __device__ __forceinline__ int each_of_row(Visit visit) const {
    const auto visit_pack = [&](const Neighbours& here) {
#pragma unroll 1
      for (int v = 0; v < kVector; ++v) visit(here.at(v), here.first + v);
    };
    return row.each(visit_pack, shared);
  }
  __device__ __forceinline__ static unsigned packs_in_shared_memory() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return (bytes - static_cast<unsigned>(sizeof(Shared))) / (kThreads * 16);
  }
  __device__ __forceinline__ Pack<T, kVector>* own() const {
    return packs_behind(shared) + threadIdx.x;
  }

  template <bool kIsHeld, typename Keeps>
  __device__ __forceinline__ void write_packs(T* kept, Keeps keeps) const {
    const Pack<T, kVector>* at = own();
#pragma unroll 1
    for (unsigned pack = begin; pack < end; pack += kThreads, at += kThreads) {
      const int first = static_cast<int>(pack * kVector);
#pragma unroll 1
      for (int begin = 0; begin < kVector; begin += 4) {  // by fours, as above
        Pack<T, 4> here;
        if constexpr (kIsHeld) {
          here = *reinterpret_cast<const Pack<T, 4>*>(&at->at[begin]);
        } else {
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const int id = first + begin + v;
            here.at[v] = id < row.length ? row.raw[id] : from_float<T>(-kInfinity);
          }
        }
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          if (!keeps(to_float(here.at[v]), first + begin + v, kIsHeld)) {
            here.at[v] = from_float<T>(-kInfinity);
          }
        }
        *reinterpret_cast<Pack<T, 4>*>(kept + first + begin) = here;
      }
    }
  }

  template <typename Keeps>
  __device__ __forceinline__ void write_words(unsigned* kept, Keeps keeps) const {
    const unsigned words = (row.length + 31) / 32, step = blocks_of_cluster() * kThreads;
#pragma unroll 1
    for (unsigned word = rank_in_cluster() * kThreads + threadIdx.x; word < words; word += step) {
      unsigned bits = 0;
#pragma unroll 1
      for (int bit = 0; bit < 32; ++bit) {
        const int id = static_cast<int>(32 * word) + bit;
        if (id < row.length && keeps(row.read(id), id, false)) bits |= 1u << bit;
      }
      kept[word] = bits;
    }
  }
};

// The sum over the threads of the block, in its first warp; `of_warp` is written before a barrier.
__device__ __forceinline__ Mass block_mass(Mass own, Mass (&of_warp)[kWarps]) {
  own = warp_sum(own);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) of_warp[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  return warp_sum(lane < kWarps ? of_warp[lane] : Mass(0));
}

// The sum over the blocks of a cluster of what each has at this place.
template <typename Number>
__device__ __forceinline__ Number cluster_sum(Number* mine) {
  const int blocks = blocks_of_cluster();
  Number sum = 0;
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    sum += rank < blocks ? *in_block(mine, rank) : Number(0);
  }
  return sum;
}

// The maximum of the same.
template <typename Number>
__device__ __forceinline__ Number cluster_max(Number* mine) {
  const int blocks = blocks_of_cluster();
  Number most = *mine;
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank < blocks) most = max(most, *in_block(mine, rank));
  }
  return most;
}

// Copies the lists of the other blocks behind this block's; returns the number of keys of all,
// which the list can hold. Blocks may go on when all have done so.
__device__ __forceinline__ int join_lists(Shared& shared) {
  static_assert(kWarps >= kMostBlocks, "each list is copied by a warp, or several");
  const int blocks = blocks_of_cluster(), self = rank_in_cluster();
  const int warp = threadIdx.x / kWarp, mine = warp % blocks;  // warps take the lists in turn
  int size = shared.count, base = 0, count = 0;
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank >= blocks || rank == self) continue;
    const int theirs = *in_block(&shared.count, rank);
    if (rank == mine) {
      base = size;
      count = theirs;
    }
    size += theirs;
  }
  const Key* from = in_block(shared.list, mine);
  const int warps = (kWarps - mine + blocks - 1) / blocks;
#pragma unroll 1
  for (int i = warp / blocks * kWarp + threadIdx.x % kWarp; i < count; i += warps * kWarp) {
    shared.list[base + i] = from[i];
  }
  __syncthreads();
  return size;
}
