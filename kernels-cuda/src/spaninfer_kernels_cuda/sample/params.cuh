// The sampling parameters of a request: parameters.py has the same fields.

constexpr float kColdest = 1e-5f;  // temperatures below are greedy

struct SamplingParams {
  unsigned long long seed;
  float temperature;
  int top_k;
  float typical_p, top_p, min_p;
  float repetition, presence, frequency;
  int ngram;
  int prompt_len;
  int bias_first, bias_count;
  int word_first, word_count;
  int end_first, end_count, end_until;
  int masked;
  int logprobs;  // -1: none
  int processed;

  __device__ __forceinline__ bool truncates_to_k(int length) const {
    return top_k > 0 && top_k < length;
  }
  __device__ __forceinline__ bool is_greedy() const { return temperature < kColdest; }
  __device__ __forceinline__ bool is_typical() const { return typical_p < 1.0f && !is_greedy(); }
  __device__ __forceinline__ bool penalizes() const {
    return repetition != 1.0f || presence != 0.0f || frequency != 0.0f;
  }
  __device__ __forceinline__ bool is_processed(int position) const {
    return penalizes() || ngram > 0 || bias_count > 0 || word_count > 0 ||
           (end_count > 0 && position < end_until);
  }
};
static_assert(sizeof(SamplingParams) == 88, "the size of a record of parameters.py");

// Parameters without records: of each a value for all rows, or an array with one for each.
struct GivenParams {
  const long long* seeds;
  long long seed;
  const float* temperatures;
  float temperature;
  const int* top_ks;
  int top_k;
  const float* top_ps;
  float top_p;
  const float* min_ps;
  float min_p;

  // Writes the record of a row.
  __device__ __forceinline__ void write(SamplingParams* record, int row, bool is_masked) const {
    *record = {};
    record->seed = static_cast<unsigned long long>(seeds ? seeds[row] : seed);
    record->temperature = temperatures ? temperatures[row] : temperature;
    record->top_k = top_ks ? top_ks[row] : top_k;
    record->top_p = top_ps ? top_ps[row] : top_p;
    record->min_p = min_ps ? min_ps[row] : min_p;
    record->typical_p = record->repetition = 1.0f;
    record->logprobs = -1;
    record->masked = is_masked;
  }
};
