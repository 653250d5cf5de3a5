// Records of sampling parameters, of a value for all rows or an array with one for each.
//
// Needs params.cuh.

extern "C" __global__ void make_records(SamplingParams* records, int* slots, int* positions,
                                        int rows, const int* given_positions,
                                        const long long* seeds, long long seed,
                                        const float* temperatures, float temperature,
                                        const int* top_ks, int top_k, const float* top_ps,
                                        float top_p, const float* min_ps, float min_p,
                                        int masked) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  SamplingParams record = {};
  record.seed = static_cast<unsigned long long>(seeds ? seeds[row] : seed);
  record.temperature = temperatures ? temperatures[row] : temperature;
  record.top_k = top_ks ? top_ks[row] : top_k;
  record.top_p = top_ps ? top_ps[row] : top_p;
  record.min_p = min_ps ? min_ps[row] : min_p;
  record.typical_p = 1.0f;
  record.repetition = 1.0f;
  record.logprobs = -1;
  record.masked = masked;
  records[row] = record;
  slots[row] = row;
  positions[row] = given_positions ? given_positions[row] : row;
}
