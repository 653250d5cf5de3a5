// The plan of a step of multi-head latent attention (mla/plan.cu), as its other kernels read it.
//
// A slice is the new tokens of one sequence; its lines are its queries times all heads, token by
// token. A tile is TILE adjacent lines of a slice, a group LANES adjacent tiles of it, which as
// many thread blocks compute together, so that they find its keys in L2. Keys come in blocks of
// kBlock tokens. Part p of the groups' blocks of keys belongs to the thread blocks p * LANES .. +
// LANES - 1.
//
//   plan   {groups, merges, -, -} | ranges[parts] | merges[parts] | groups[G]: two words each
//
// It may be written while thread blocks that read it begin, so it is read from L2.

constexpr int kBlock = 64;  // tokens

struct Group {
  int table_row;  // of the span tables
  int line;       // the first one of its first tile, counted over the whole step
  int lines;      // of the slice from there on
  int blocks;     // of keys that any line of the group sees
  int position;   // the last one that the slice's first query sees
  int offset;     // of `line` from the slice's first
  int cost;       // of all groups before it
  int pad;
};

struct Range {
  int group, block, last_group, last_block;  // up to block `last_block` of `last_group`, exclusive
};

// A group that several parts have blocks of: the first of them and their number.
struct Merge {
  int part, count, group, pad;
};

struct Plan {
  int4* words;
  int parts;

  __device__ __forceinline__ Range range(int part) const {
    const int4 at = __ldcg(words + 1 + part);
    return {at.x, at.y, at.z, at.w};
  }
  __device__ __forceinline__ int num_merges() const { return __ldcg(words).y; }
  __device__ __forceinline__ Merge merge(int number) const {
    const int4 at = __ldcg(words + 1 + parts + number);
    return {at.x, at.y, at.z, at.w};
  }
  __device__ __forceinline__ int4* group_words(int number) const {
    return words + 1 + 2 * parts + 2 * number;
  }
  __device__ __forceinline__ Group group(int number) const {
    const int4 first = __ldcg(group_words(number)), second = __ldcg(group_words(number) + 1);
    return {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  }
};
