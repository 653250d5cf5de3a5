// Penalties, bias, bad words and minimum length: the changed logits, in a workspace.

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_penalties(unsigned* changed, float* processed, const T* logits,
                  const SamplingParams* all_params, const int* slots, const int* positions,
                  const int* tokens, const int* bias_ids, const float* biases,
                  const int* word_bounds, const int* word_tokens, const int* end_ids, int length,
                  long long stride, int token_stride) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;
  const SamplingParams params = all_params[slot];
  const int position = positions[blockIdx.y];
  if (!params.is_processed(position)) return;
  const T* row = logits + blockIdx.y * stride;
  const int words = (length + 31) / 32;
  changed += static_cast<size_t>(blockIdx.y) * words;
  processed += static_cast<size_t>(blockIdx.y) * length;
  const int* known = tokens + static_cast<size_t>(slot) * token_stride;

  // Until a token's logit is written, its place holds the token's count in the output, and a flag
  // for prompt or output.
  constexpr unsigned kKnown = 1u << 31;
  unsigned* counts = reinterpret_cast<unsigned*>(processed);
  const int counted = params.penalizes() ? position : 0;
  const auto count_of = [&](int id) { return __ldcg(&counts[id]); };  // in L2, like the atomics
  const auto mark = [&](int id) {
    const unsigned bit = 1u << (id % 32);
    return (atomicOr(&changed[id / 32], bit) & bit) == 0;
  };
  const auto mask_out = [&](int id) {
    mark(id);
    processed[id] = -kInfinity;
  };
  const auto penalized = [&](float x, unsigned count) {
    if (count & kKnown && params.repetition != 1.0f) {
      x = x < 0.0f ? x * params.repetition : x / params.repetition;
    }
    const int times = static_cast<int>(count & ~kKnown);
    if (times == 0) return x;
    return x - static_cast<float>(params.presence + static_cast<double>(params.frequency) * times);
  };

  for_each(words, [&](int i) { changed[i] = 0; });
  for_each(params.bias_count, [&](int i) { counts[bias_ids[params.bias_first + i]] = 0; });
  for_each(counted, [&](int i) { counts[known[i]] = 0; });
  for_each(counted, [&](int i) {
    atomicOr(&counts[known[i]], kKnown);
    if (i >= params.prompt_len) atomicAdd(&counts[known[i]], 1);
  });
  for_each(params.bias_count, [&](int i) {
    const int id = bias_ids[params.bias_first + i];
    mark(id);
    processed[id] = penalized(to_float(row[id]) + biases[params.bias_first + i], count_of(id));
  });
  for_each(counted, [&](int i) {
    const int id = known[i];
    if (mark(id)) processed[id] = penalized(to_float(row[id]), count_of(id));
  });
  for_each(position < params.end_until ? params.end_count : 0,
           [&](int i) { mask_out(end_ids[params.end_first + i]); });
  for_each(params.word_count, [&](int i) {
    const int* word = word_tokens + word_bounds[params.word_first + i];
    const int before =
        word_bounds[params.word_first + i + 1] - word_bounds[params.word_first + i] - 1;
    if (before > position) return;
#pragma unroll 1
    for (int j = 0; j < before; ++j) {
      if (word[j] != known[position - before + j]) return;
    }
    mask_out(word[before]);
  });
  const int before = params.ngram - 1;
  for_each(params.ngram > 0 ? max(position - before, 0) : 0, [&](int i) {
#pragma unroll 1
    for (int j = 0; j < before; ++j) {
      if (known[i + j] != known[position - before + j]) return;
    }
    mask_out(known[i + before]);
  });
}
