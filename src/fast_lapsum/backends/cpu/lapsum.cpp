// The exact-budget soft top-k on a CPU behind a plain C interface: no dependency on Python or
// torch.
//
// With u = ((r - hi) - lo) / t the mask is p = sigma(u), sigma the Laplace CDF, and b = hi + lo is
// the threshold at which the masses add up to the budget k. Read in this order:
//
//   numbers.hpp   half precision, the exponential
//   sums.hpp      what is added up, and in which order
//   simd.hpp      the inner loops, compiled for several instruction sets
//   rows.hpp      how a row is read and reduced
//   iterate.hpp   the two-exponential iteration
//   sampled_band.hpp   where a sample puts the threshold of a long row
//   counts.hpp, gather.hpp, rank.hpp   the scores of a band, and the score of a rank
//   solve.hpp     from a row to its threshold
//   density.hpp   q = softmax(-|u|), which gradients are made of
//   write.hpp     from a threshold to mask and gradients
//   log.hpp       log p and its gradients
//   select.hpp    the selected scores' places and weights
//   sample.hpp    a random selection
//   transpose.hpp, network.hpp, tile.hpp, tile_rows.hpp   several rows at a time, one in each lane
//   call.hpp      what a call says
//   short_logs.hpp, short_rows.hpp, short_gradients.hpp   short rows
//   stage.hpp     rows that lie across the memory
//   each_row.hpp  every row of a call
//   mask_calls.hpp, selection_calls.hpp   which rows go which way
//   ragged_calls.hpp   rows of several lengths
//   list_calls.hpp     several vectors that are one row
//   digit_sort.hpp   sorting by digits
//   shard_sort.hpp, shard_measure.hpp, shard_calls.hpp   a rank's part of rows spread over many
//   shard_curve.hpp, shard_state.hpp, shard_search.hpp   the search on what all ranks have told
//   scan.hpp, ranking.hpp   sorted rows: ranks, thresholds, their gradients
//   ranking_order.hpp, ranking_calls.hpp   what sorts them; every row of a call
//   lapsum.cpp    the exported functions

#include "list_calls.hpp"
#include "ragged_calls.hpp"
#include "ranking_calls.hpp"
#include "selection_calls.hpp"
#include "shard_calls.hpp"
#include "shard_search.hpp"

#if defined(_WIN32)
#define LAPSUM_EXPORT extern "C" __declspec(dllexport)
#else
#define LAPSUM_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

// The band that the sample of a long row places, and whether it led to the threshold: what a study
// of the sampler looks at. The steps are those of solve_by_guess.
template <class T>
void sample_bands(const Call& call) {
    const Places places(call.n);
    each_row(call, kDear, [&](const Call&, const RowIndex& index, int threads) {
        Row<T> row = make_row<T>(call, index, threads);
        const double k = index.budget(call), t = index.temperature(call);
        Bracket<T> band{T(kNaN), T(kNaN), 0, 0};
        T guess;
        Threshold found;
        const bool is_placed = sample_band(row, places, k, t, &band, &guess);
        T* pair = reinterpret_cast<T*>(call.threshold) + 2 * index.flat;
        pair[0] = is_placed ? band.left : T(kNaN);
        pair[1] = is_placed ? band.right : T(kNaN);
        call.passes[index.flat] = is_placed && solve_in_band(row, band, guess, k, t, &found);
    });
}

}  // namespace

constexpr int64_t kOutOfMemory = -2;

// The thresholds, and the mask or what is asked for in its place. Returns -1, or the least number of
// valid scores of a row whose budget is over it (that row is NaN), or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_forward(const Call* call) try {
    return call->dtype == kFloat64 ? forward<double>(*call) : forward<float>(*call);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Gradients for scores, budget and temperature: of the mask, of its logarithm, or of the threshold,
// for which `grad` has one number per row. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_backward(const Call* call) try {
    call->dtype == kFloat64 ? backward<double>(*call) : backward<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The same of rows of several lengths; what is beyond a row of one size is written, too: 0, or -inf
// where it is the logarithm.
LAPSUM_EXPORT int64_t lapsum_ragged_forward(const RaggedCall* call) try {
    const bool is_wide = call->call.dtype == kFloat64;
    return is_wide ? ragged_forward<double>(*call) : ragged_forward<float>(*call);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

LAPSUM_EXPORT int64_t lapsum_ragged_backward(const RaggedCall* call) try {
    call->call.dtype == kFloat64 ? ragged_backward<double>(*call) : ragged_backward<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The same of several vectors that are one row.
LAPSUM_EXPORT int64_t lapsum_list_forward(const ListCall* call) try {
    const bool is_wide = call->call.dtype == kFloat64;
    return is_wide ? list_forward<double>(*call) : list_forward<float>(*call);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

LAPSUM_EXPORT int64_t lapsum_list_backward(const ListCall* call) try {
    call->call.dtype == kFloat64 ? list_backward<double>(*call) : list_backward<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The places of the `count` selected scores of every row, by their order in the row or sorted by
// score, their weights, and the thresholds. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_select(const SelectCall* call) try {
    call->call.dtype == kFloat64 ? select<double>(*call) : select<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Gradients of those weights for scores and temperature. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_select_backward(const SelectCall* call) try {
    call->call.dtype == kFloat64 ? select_backward<double>(*call) : select_backward<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Random masks of exactly k ones with the mask's probabilities. Returns what lapsum_forward does.
LAPSUM_EXPORT int64_t lapsum_sample(const SampleCall* call) try {
    return call->call.dtype == kFloat64 ? sample<double>(*call) : sample<float>(*call);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The bands that samples place, into `threshold`, and whether each held, into `passes`; soft rows of
// at least kBandFrom scores. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_sample_bands(const Call* call) try {
    call->dtype == kFloat64 ? sample_bands<double>(*call) : sample_bands<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Sorted rows, and where their scores were. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_order(const OrderCall* call) try {
    call->dtype == kFloat64 ? order_rows<double>(*call) : order_rows<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Soft ranks of sorted rows, each at the place that `order` gives. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_rank(const RankingCall* call) try {
    call->dtype == kFloat64 ? rank_rows<double>(*call) : rank_rows<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Gradients of those ranks for the scores. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_rank_backward(const RankingCall* call) try {
    call->dtype == kFloat64 ? rank_gradients<double>(*call) : rank_gradients<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Thresholds of sorted rows at given masses, and what their gradients need. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_thresholds(const RankingCall* call) try {
    call->dtype == kFloat64 ? threshold_rows<double>(*call) : threshold_rows<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Gradients of those thresholds for the scores. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_thresholds_backward(const RankingCall* call) try {
    call->dtype == kFloat64 ? threshold_gradients<double>(*call) : threshold_gradients<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Sums that decay over given gaps. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_decayed_sums(const SumsCall* call) try {
    call->dtype == kFloat64 ? sum_columns<double>(*call) : sum_columns<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Measurements of a rank's part of rows that are spread over many. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_shard_measure(const MeasureCall* call) try {
    call->call.dtype == kFloat64 ? measure_rows<double>(*call) : measure_rows<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The first step of a search for thresholds of such rows, from samples of all ranks, and each of the
// next, from their measurements. Returns how many rows are still open, or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_shard_begin(const SearchCall* call) try {
    return each_open_row(*call, begin_row);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

LAPSUM_EXPORT int64_t lapsum_shard_advance(const SearchCall* call) try {
    return each_open_row(*call, advance_row);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Samples of such rows. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_shard_sample(const SampleNodesCall* call) try {
    call->call.dtype == kFloat64 ? sample_rows<double>(*call) : sample_rows<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Its masks and hard masks. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_shard_write(const WriteCall* call) try {
    call->call.dtype == kFloat64 ? write_rows<double>(*call) : write_rows<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Its sums for the gradients of masks. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_shard_gradient_sums(const GradientCall* call) try {
    const bool is_wide = call->call.dtype == kFloat64;
    is_wide ? mask_gradient_sums<double>(*call) : mask_gradient_sums<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Its gradients of masks. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_shard_gradient(const GradientCall* call) try {
    const bool is_wide = call->call.dtype == kFloat64;
    is_wide ? write_mask_gradient<double>(*call) : write_mask_gradient<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The instruction set in use, for people.
LAPSUM_EXPORT const char* lapsum_instruction_set() {
#ifdef LAPSUM_HAS_CLONES
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4 (AVX-512)";
    if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3 (AVX2)";
    return "x86-64";
#elif defined(__aarch64__)
    return "aarch64 (NEON)";
#else
    return "the compiler's default";
#endif
}

LAPSUM_EXPORT int64_t lapsum_has_threads() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

// The size of Call, which the loader compares with its own idea of it.
LAPSUM_EXPORT int64_t lapsum_call_size() { return int64_t(sizeof(Call)); }
