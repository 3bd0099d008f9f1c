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
//   solve.hpp     from a row to its threshold
//   density.hpp   q = softmax(-|u|), which gradients are made of
//   write.hpp     from a threshold to mask and gradients
//   log.hpp       log p and its gradients
//   select.hpp    the selected scores' places and weights
//   sample.hpp    a random selection
//   lapsum.cpp    the exported functions

#include "log.hpp"
#include "sample.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

#if defined(_WIN32)
#define LAPSUM_EXPORT extern "C" __declspec(dllexport)
#else
#define LAPSUM_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// A tensor seen as outer x inner rows. A null pointer stands for an argument that was not given.
struct Tensor {
    char* data;
    int64_t outer_stride, inner_stride, stride;  // in elements
};

// What a call writes beside the thresholds, or what it has the gradient of; kOutput of kernel.py.
enum Output : int64_t { kMask = 0, kHardMask = 1, kLogMask = 2, kThreshold = 3 };

// Laid out as kernel.py packs it: eight bytes a field.
struct Call {
    int64_t dtype, out_dtype, grad_dtype;
    int64_t outer, inner, n;
    int64_t largest, output, threads, most_passes;
    Tensor scores, mask, budget, temperature, warm_start, grad, out;
    double budget_number, temperature_number;
    char* threshold;   // [outer, inner, 2] in the compute dtype
    double* d_budget;  // [outer, inner], backward
    double* d_temperature;
    int64_t* passes;  // [outer, inner] or null
};

// A call about the k selected scores of each row.
struct SelectCall {
    Call call;
    int64_t count, sorted;
    int64_t* indices;  // [outer, inner, count]
    char* values;      // the same: weights in out_dtype, or their gradient in grad_dtype
};

// A call for random masks: one uniform number in [0, 1) per row.
struct SampleCall {
    Call call;
    const double* start;  // [outer, inner]
};

namespace {

struct RowIndex {
    int64_t outer, inner, flat;

    int64_t offset(const Tensor& tensor) const {
        return outer * tensor.outer_stride + inner * tensor.inner_stride;
    }

    Strided strided(const Tensor& tensor, int64_t dtype) const {
        return {tensor.data + offset(tensor) * width(dtype), tensor.stride, dtype};
    }

    double number(const Tensor& tensor, double otherwise) const {
        return tensor.data == nullptr
                   ? otherwise
                   : reinterpret_cast<const double*>(tensor.data)[offset(tensor)];
    }
};

constexpr int64_t kRowGroup = 8;

// work(index, threads of the row, kin) for every row: groups of rows side by side, or one row after
// the other with all threads inside each.
template <class Work>
void each_row(const Call& call, Work work) {
    const int64_t rows = call.outer * call.inner, groups = (rows + kRowGroup - 1) / kRowGroup;
    const int threads = int(call.threads);
    const bool side_by_side = threads > 1 && groups >= threads && rows * call.n >= kParallelScores;
    const auto one_group = [&](int64_t group, int row_threads) {
        Kin kin;
        for (int64_t flat = group * kRowGroup; flat < std::min(rows, (group + 1) * kRowGroup);
             ++flat) {
            work(RowIndex{flat / call.inner, flat % call.inner, flat}, row_threads, &kin);
        }
    };
    // Larger shares for short rows; results do not depend on them.
    const int64_t share = std::max<int64_t>(
        1, std::min(groups / (8 * threads), kParallelScores / (kRowGroup * call.n + 1)));
    for_each(groups, side_by_side ? threads : 1, share,
             [&](int64_t group) { one_group(group, side_by_side ? 1 : threads); });
}

template <class T>
Row<T> make_row(const Call& call, const RowIndex& index, int threads) {
    Row<T> row;
    row.scores = index.strided(call.scores, call.dtype);
    row.mask = call.mask.data == nullptr
                   ? nullptr
                   : reinterpret_cast<const uint8_t*>(call.mask.data) + index.offset(call.mask);
    row.mask_stride = call.mask.stride;
    row.largest = call.largest != 0;
    row.n = call.n;
    row.threads = threads;
    row.most_passes = int(call.most_passes);
    return row;
}

// Fresh memory of this size costs more in page faults than the arithmetic that fills it: ask for
// large pages, which Linux commonly grants on request only.
void ask_for_large_pages(const Call& call) {
#ifdef __linux__
    constexpr int64_t kAsk = 8 << 20, kPage = 4096;
    const Tensor& out = call.out;
    const bool inner_fits = call.inner == 1 || out.inner_stride == call.n;
    const bool outer_fits = call.outer == 1 || out.outer_stride == call.inner * call.n;
    const int64_t bytes = call.outer * call.inner * call.n * width(call.out_dtype);
    if (out.data == nullptr || out.stride != 1 || !inner_fits || !outer_fits) return;
    if (bytes < kAsk) return;
    const auto begin = (reinterpret_cast<uintptr_t>(out.data) + kPage - 1) / kPage * kPage;
    const auto end = (reinterpret_cast<uintptr_t>(out.data) + uintptr_t(bytes)) / kPage * kPage;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a hint: may fail
#else
    (void)call;
#endif
}

template <class T>
Threshold kept_threshold(const Call& call, const RowIndex& index, double t) {
    const T* pair = reinterpret_cast<const T*>(call.threshold) + 2 * index.flat;
    Threshold threshold{double(pair[0]), double(pair[1]), false, false};
    threshold.is_hard = t < double(std::numeric_limits<T>::min()) || threshold.hi == kInfinity;
    return threshold;
}

template <class T>
void keep_threshold(const Call& call, const RowIndex& index, const Threshold& threshold) {
    T* pair = reinterpret_cast<T*>(call.threshold) + 2 * index.flat;
    pair[0] = T(threshold.hi);
    pair[1] = T(threshold.lo);
}

// The least number of valid scores of a row whose budget is over it, or -1.
int64_t least_of(const std::vector<int64_t>& over_limit) {
    int64_t least = -1;
    for (const int64_t limit : over_limit) {
        if (limit >= 0) least = least < 0 ? limit : std::min(least, limit);
    }
    return least;
}

template <class T>
int64_t forward(const Call& call) {
    ask_for_large_pages(call);
    const int64_t rows = call.outer * call.inner;
    std::vector<int64_t> over_limit(static_cast<size_t>(rows), -1);
    each_row(call, [&](const RowIndex& index, int threads, Kin* kin) {
        Row<T> row = make_row<T>(call, index, threads);
        const double k = index.number(call.budget, call.budget_number);
        const double t = index.number(call.temperature, call.temperature_number);
        double start = index.number(call.warm_start, kNaN);
        start = row.largest ? start : -start;
        const bool hard = call.output == kHardMask;
        const Solution solution = solve_row(row, k, t, start, hard, kin);
        const Strided out = index.strided(call.out, call.out_dtype);
        if (hard && !std::isnan(solution.threshold.hi)) {
            write_hard_mask(row, solution.hard, k, out);
        } else if (call.output == kLogMask) {
            write_log_mask(row, solution.threshold, k, t, out);
        } else if (call.output != kThreshold) {
            write_mask(row, solution.threshold, t, out);
        }
        keep_threshold<T>(call, index, solution.threshold);
        if (call.passes != nullptr) call.passes[index.flat] = row.passes;
        over_limit[size_t(index.flat)] = solution.over_limit;
    });
    return least_of(over_limit);
}

template <class T>
void backward(const Call& call) {
    ask_for_large_pages(call);
    each_row(call, [&](const RowIndex& index, int threads, Kin*) {
        Row<T> row = make_row<T>(call, index, threads);
        const double t = index.number(call.temperature, call.temperature_number);
        const Threshold threshold = kept_threshold<T>(call, index, t);
        const Strided grad = index.strided(call.grad, call.grad_dtype),
                      out = index.strided(call.out, call.out_dtype);
        RowGradient gradient;
        if (call.output == kLogMask) {
            gradient = write_log_gradient(row, grad, threshold, t, out);
        } else if (call.output == kThreshold) {
            gradient = write_threshold_gradient(row, read_one<double>(grad, 0), threshold, t, out);
        } else {
            gradient = write_gradient(row, grad, threshold, t, out);
        }
        if (call.d_budget != nullptr) call.d_budget[index.flat] = gradient.budget;
        if (call.d_temperature != nullptr) call.d_temperature[index.flat] = gradient.temperature;
    });
}

template <class T>
void select(const SelectCall& select_call) {
    const Call& call = select_call.call;
    const int64_t count = select_call.count;
    each_row(call, [&](const RowIndex& index, int threads, Kin* kin) {
        Row<T> row = make_row<T>(call, index, threads);
        double k = double(count);
        const double t = index.number(call.temperature, call.temperature_number);
        Solution solution = solve_row(row, k, t, kNaN, true, kin);
        if (solution.over_limit >= 0) {  // a row of fewer scores gives all it has
            k = double(solution.over_limit);
            solution = solve_row(row, k, t, kNaN, true, kin);
        }
        const int64_t at = index.flat * count;
        const Strided weights{select_call.values + at * width(call.out_dtype), 1, call.out_dtype};
        write_selection(row, solution, int64_t(k), t, select_call.sorted != 0, count,
                        select_call.indices + at, weights);
        keep_threshold<T>(call, index, solution.threshold);
    });
}

template <class T>
void select_backward(const SelectCall& select_call) {
    const Call& call = select_call.call;
    ask_for_large_pages(call);
    each_row(call, [&](const RowIndex& index, int threads, Kin*) {
        Row<T> row = make_row<T>(call, index, threads);
        const double t = index.number(call.temperature, call.temperature_number);
        const int64_t at = index.flat * select_call.count;
        const Strided grad{select_call.values + at * width(call.grad_dtype), 1, call.grad_dtype};
        const RowGradient gradient = write_selection_gradient(
            row, select_call.indices + at, select_call.count, grad,
            kept_threshold<T>(call, index, t), t, index.strided(call.out, call.out_dtype));
        if (call.d_temperature != nullptr) call.d_temperature[index.flat] = gradient.temperature;
    });
}

template <class T>
int64_t sample(const SampleCall& sample_call) {
    const Call& call = sample_call.call;
    ask_for_large_pages(call);
    std::vector<int64_t> over_limit(static_cast<size_t>(call.outer * call.inner), -1);
    each_row(call, [&](const RowIndex& index, int threads, Kin* kin) {
        Row<T> row = make_row<T>(call, index, threads);
        const double k = index.number(call.budget, call.budget_number);
        const double t = index.number(call.temperature, call.temperature_number);
        Solution solution = solve_row(row, k, t, kNaN, false, kin);
        over_limit[size_t(index.flat)] = solution.over_limit;
        if (k != std::floor(k)) solution.threshold = {};
        write_sample(row, solution.threshold, k, t, sample_call.start[index.flat],
                     index.strided(call.out, call.out_dtype));
    });
    return least_of(over_limit);
}

// The first band of a long row that has no kin, and whether it led to the threshold: what a study of
// the sampler looks at. The steps are those of solve_by_guess.
template <class T>
void sample_bands(const Call& call) {
    each_row(call, [&](const RowIndex& index, int threads, Kin*) {
        Row<T> row = make_row<T>(call, index, threads);
        const double k = index.number(call.budget, call.budget_number);
        const double t = index.number(call.temperature, call.temperature_number);
        Bracket<T> band{T(kNaN), T(kNaN), 0, 0};
        T guess;
        Threshold found;
        const bool is_placed = sample_band(row, k, t, &band, &guess);
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
