// The tiles of a warp, from the last to the first: token by token, in each request item by item.

// kTile tokens of a request as one item reads them.
struct Tile {
  int request, kv_head, section;  // sections: the heads and elements of a key head that are apart
  int length, token;              // the request's tokens, and the first one of the tile
  int origin;                     // the token that the item's first tile begins at

  __device__ __forceinline__ bool begins_item() const { return token == origin; }
  __device__ __forceinline__ bool ends_item() const { return token + kTile >= length; }
};

using Spans = int[TILES];  // the numbers of those that hold a tile

// Steps through the tiles of a warp. Loads for the previous request are issued when one begins.
struct TileIterator {
  Tile tile;
  int left;  // tiles of the warp from this one down
  int sections, next_length, next_row;
  const int* table;

  __device__ __forceinline__ void start(const Arguments& of, const TileRange& range) {
    sections = ceil_div(of.group, kHeads) * (VALUE_SIZE / VALUE_TILE);
    left = range.end - range.begin;
    ask(of, range.request);
    enter(of, range.request);
    const int tiles = ceil_div(tile.length - tile.origin, kTile);
    const int number = range.end - 1 - range.first, index = number / tiles;
    tile.kv_head = index / sections;
    tile.section = index % sections;
    tile.token = tile.origin + (number - index * tiles) * kTile;
  }

  // Loads the spans. Those past the last token are the request's, too: they can be read.
  __device__ __forceinline__ void look_up(Spans& spans, const Arguments& of) const {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int token = min(tile.token + i * kMmaTokens, tile.length - 1);
      spans[i] = __ldcg(&table[token >> of.span_shift]);
    }
  }

  __device__ __forceinline__ void advance(const Arguments& of) {
    if (--left <= 0) return;
    tile.token -= kTile;
    if (tile.token >= tile.origin) return;
    if (--tile.section < 0) {
      tile.section = sections - 1;
      if (--tile.kv_head < 0) {
        tile.kv_head = of.kv_heads - 1;
        do enter(of, tile.request - 1);
        while (tile.length == 0);
      }
    }
    tile.token = tile.origin + (ceil_div(tile.length - tile.origin, kTile) - 1) * kTile;
  }

 private:
  __device__ __forceinline__ void ask(const Arguments& of, int request) {
    next_length = __ldcg(&of.seq_lens[request]);
    next_row = of.table_rows == nullptr ? request : __ldcg(&of.table_rows[request]);
  }
  __device__ __forceinline__ void enter(const Arguments& of, int request) {
    tile.request = request;
    tile.length = next_length;
    tile.origin = first_token(tile.length, of.window);
    table = of.span_tables + next_row * of.table_stride;
    ask(of, max(request - 1, 0));
  }
};
