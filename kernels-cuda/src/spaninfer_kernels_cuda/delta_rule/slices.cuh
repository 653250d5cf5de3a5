// The slices of a step, and the spans in which they find and leave the states of their sequences.
//
// Slice s is tokens [query_start_loc[s], query_start_loc[s + 1]) of the step: positions
// [start, stop) of the sequence in row table_rows[s] of the span tables; -1 pads. It begins with
// the state in the span of index (start - 1) / span_len, and leaves one in the span of its last
// index, its target. Where an index before that names another span, a snapshot of the state behind
// the last position of the index goes there.

struct Slice {
  int first;  // token of the step
  int count;
  int start;         // position
  const int* table;  // null: padding
  int span_len;

  __device__ int stop() const { return start + count; }
  __device__ int last_index() const { return (stop() - 1) / span_len; }
  __device__ int target() const { return table[last_index()]; }
  // The span of the state in front; -1: the sequence begins, with zeros.
  __device__ int source() const { return start > 0 ? table[(start - 1) / span_len] : -1; }
  // The span for a snapshot at the end of an index in front of the last; -1: none.
  __device__ int snapshot(int index) const {
    return index < last_index() && table[index] != target() ? table[index] : -1;
  }
};

// Spans of states: those of one layer, and how they are found.
struct SliceTable {
  const int* table_rows;
  const int* seq_lens;
  const int* query_start_loc;
  const int* tables;
  long long table_stride;
  int span_len;

  __device__ Slice at(int number) const {
    const int first = query_start_loc[number];
    const int count = query_start_loc[number + 1] - first;
    const int row = table_rows[number];
    const int* table = row < 0 ? nullptr : tables + row * table_stride;
    return {first, count, seq_lens[number] - count, table, span_len};
  }
};
