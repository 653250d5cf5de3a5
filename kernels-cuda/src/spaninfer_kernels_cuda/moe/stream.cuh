// Rows of weights as a warp of a GEMV reads them: each once, 16 bytes a lane.
//
// A warp owns COLUMNS columns of a result, and loads LOADS pieces of each of its rows at once: the
// more loads wait for memory, the nearer the rate is to memory's. Tokens with the same expert read
// the same rows at about the same time, so memory once and the L2 cache the other times. Sums are
// float32, in an order that depends on the shape alone.
//
// Macros: T (element), COLUMNS, LOADS, WARPS (of a block), BLOCKS (of an SM, which bounds
//         registers). COLUMNS WARPS divides 8, and so all columns.
// Needs types.cuh, reduce.cuh, load.cuh.

constexpr int kStep = kWarp * kVector;  // elements of a row that a warp loads at once
