// The plan of a decode step: its layout and its readers; plan.cu fills it.
//
// In memory: Totals | TileRange of each warp of the grid | Order of each block | first tile of each
// request, and their number at the end | for each part that blocks leave, how many readers it has.

constexpr int kMmaTokens = 16;  // tokens that an mma takes: tiles begin at multiples of it
constexpr int kMany = 16;      // a long item is one that goes on for more blocks than so many

// The number of blocks after a long item that share the rows of its result: some 3 % of the grid.
// At most kMany, so that they never reach the end of another long item.
__device__ __forceinline__ int readers_of(int blocks) { return min(max(blocks / 32, 1), 8); }

// The index in the workspace of the part of the long item that ends in a block. The first parts are
// those of items that continue after each block.
__device__ __forceinline__ int part_at_end(int blocks, int block) {
  return blocks + block / (kMany + 1);
}
__device__ __forceinline__ int parts_of(int blocks) { return part_at_end(blocks, blocks) + 1; }

struct Division {     // of tiles into shares as equal as possible
  int share, longer;  // tiles of a share: one more for the first `longer`

  __device__ __forceinline__ int begin(int index) const {
    return index * share + min(index, longer);
  }
  __device__ __forceinline__ int holder(int tile) const {
    const int behind = tile - longer * (share + 1);
    return behind < 0 ? tile / (share + 1) : longer + behind / share;
  }
};

struct alignas(16) Totals {  // of the whole step
  Division division;         // among the warps with work, unless blocks take whole items
  int paddings;              // requests without tokens
  int has_long_items;        // readers look at their orders
};

// The long item that ends in a block: the block that it begins in, or -1 (none does), its request
// and its number among those of the request.
struct alignas(16) Order {
  int first, request, item;
};

struct alignas(16)
    TileRange {  // tiles [begin, end); the last is of `request`, whose tiles begin at `first`
  int begin, end, request, first;
};

__device__ constexpr int ceil_div(int x, int by) { return (x + by - 1) / by; }

// The first token of a request that has to be read, rounded down to the beginning of a tile.
__device__ __forceinline__ int first_token(int length, int window) {
  return window > 0 ? max(length - window, 0) / kMmaTokens * kMmaTokens : 0;
}

__device__ __forceinline__ Division divide(int tiles, int shares) {
  return shares > 0 ? Division{tiles / shares, tiles % shares} : Division{};
}

// The addresses of the parts of a plan, for a grid of so many warps and blocks.
struct Plan {
  Totals* totals;
  int warps, blocks, requests;

  __device__ __forceinline__ TileRange* ranges() const {
    return reinterpret_cast<TileRange*>(totals + 1);
  }
  __device__ __forceinline__ Order* orders() const {
    return reinterpret_cast<Order*>(ranges() + warps);
  }
  __device__ __forceinline__ int* firsts() const {
    return reinterpret_cast<int*>(orders() + blocks);
  }
  __device__ __forceinline__ int* flags() const { return firsts() + requests + 1; }

  // Read from L2: it may be written while blocks of the reading kernel begin.
  __device__ __forceinline__ Totals load_totals() const {
    const int4 words = __ldcg(reinterpret_cast<const int4*>(totals));
    return {{words.x, words.y}, words.z, words.w};
  }
  __device__ __forceinline__ TileRange load_range(int warp) const {
    const int4 words = __ldcg(reinterpret_cast<const int4*>(ranges()) + warp);
    return {words.x, words.y, words.z, words.w};
  }
  __device__ __forceinline__ Order load_order(int block) const {
    const int4 words = __ldcg(reinterpret_cast<const int4*>(orders()) + block);
    return {words.x, words.y, words.z};
  }
};
