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
//   sample.hpp    where a sample puts the threshold of a long row
//   counts.hpp, gather.hpp, rank.hpp   the scores of a band, and the score of a rank
//   solve.hpp     from a row to its threshold
//   write.hpp     from a threshold to mask and gradients
//   network.hpp, tile.hpp, short_rows.hpp   short rows, several at a time
//   transpose.hpp, stage.hpp                rows that lie across the memory
//   lapsum.cpp    the exported functions

#include "short_rows.hpp"
#include "stage.hpp"

#include <atomic>

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

// Laid out as kernel.py packs it: eight bytes a field.
struct Call {
    int64_t dtype, out_dtype, grad_dtype;
    int64_t outer, inner, n;
    int64_t largest, hard, threads, most_passes;
    Tensor scores, mask, budget, temperature, warm_start, grad, out;
    double budget_number, temperature_number;
    char* threshold;   // [outer, inner, 2] in the compute dtype
    double* d_budget;  // [outer, inner], backward
    double* d_temperature;
    int64_t* passes;  // [outer, inner] or null
};

namespace {

struct RowIndex {
    int64_t outer, inner, flat;

    RowIndex(const Call& call, int64_t row)
        : outer(row / call.inner), inner(row % call.inner), flat(row) {}

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

// Rows that may be taken several at a time, in groups of at most `size`: where scores of
// neighbouring rows are neighbours in memory, a group does not go beyond those.
struct RowGroups {
    int64_t run, size, per_run, count;

    RowGroups(const Call& call, int64_t size_)
        : run(lies_across(call, call.scores) ? call.inner : call.outer * call.inner),
          size(size_),
          per_run((run + size - 1) / size),
          count(call.outer * call.inner / std::max<int64_t>(run, 1) * per_run) {}

    int64_t first(int64_t group) const { return group / per_run * run + group % per_run * size; }
    int64_t rows(int64_t group) const { return std::min(size, run - group % per_run * size); }

    static bool lies_across(const Call& call, const Tensor& tensor) {
        return tensor.data != nullptr && tensor.stride != 1 && tensor.inner_stride == 1 &&
               call.inner > 1 && call.n > 1;
    }
};

// work(index, threads of the row) for every row: rows side by side, or one after the other with all
// threads inside each.
template <class Work>
void each_row(const Call& call, Work work) {
    const int64_t rows = call.outer * call.inner;
    const int threads = int(call.threads);
    const bool side_by_side =
        threads > 1 && rows >= 8 * threads && rows * call.n >= kParallelScores;
    // Larger shares for short rows; results do not depend on them.
    const int64_t share =
        std::max<int64_t>(1, std::min(rows / (8 * threads), kParallelScores / (call.n + 1)));
    for_each(rows, side_by_side ? threads : 1, share, [&](int64_t row) {
        work(RowIndex(call, row), side_by_side ? 1 : threads);
    });
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
    if (out.stride != 1 || !inner_fits || !outer_fits || bytes < kAsk) return;
    const auto begin = (reinterpret_cast<uintptr_t>(out.data) + kPage - 1) / kPage * kPage;
    const auto end = (reinterpret_cast<uintptr_t>(out.data) + uintptr_t(bytes)) / kPage * kPage;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a hint: may fail
#else
    (void)call;
#endif
}

// The least number of valid scores of the rows whose budget is over it, or -1; rows tell at once.
class LeastLimit {
   public:
    void add(int64_t limit) {
        if (limit < 0) return;
        int64_t seen = least_.load();
        while ((seen < 0 || limit < seen) && !least_.compare_exchange_weak(seen, limit)) {
        }
    }
    int64_t get() const { return least_.load(); }

   private:
    std::atomic<int64_t> least_{-1};
};

template <class T>
void keep_threshold(const Call& call, const RowIndex& index, const Threshold& threshold,
                    int passes) {
    T* pair = reinterpret_cast<T*>(call.threshold) + 2 * index.flat;
    pair[0] = T(threshold.hi);
    pair[1] = T(threshold.lo);
    if (call.passes != nullptr) call.passes[index.flat] = passes;
}

template <class T>
void forward_row(const Call& call, const Places& places, const RowIndex& index, int threads,
                 LeastLimit* over_limit) {
    Row<T> row = make_row<T>(call, index, threads);
    const double k = index.number(call.budget, call.budget_number);
    const double t = index.number(call.temperature, call.temperature_number);
    double start = index.number(call.warm_start, kNaN);
    start = row.largest ? start : -start;
    const bool hard = call.hard != 0;
    const Solution solution = solve_row(row, places, k, t, start, hard);
    const Strided out = index.strided(call.out, call.out_dtype);
    if (hard && !std::isnan(solution.threshold.hi)) {
        write_hard_mask(row, solution.hard, k, out);
    } else {
        write_mask(row, solution.threshold, t, out);
    }
    keep_threshold<T>(call, index, solution.threshold, row.passes);
    over_limit->add(solution.over_limit);
}

// Rows `first` to `first + count` as one tile; those without a plain answer one by one.
template <class T, int kLanes>
void forward_tile(const Call& call, int64_t first, int count, LeastLimit* over_limit) {
    constexpr int kReadings = 2;  // to sort and to sum
    TileRow<T> rows[kLanes];
    for (int j = 0; j < count; ++j) {
        const RowIndex index(call, first + j);
        rows[j].row = make_row<T>(call, index, 1);
        rows[j].out = index.strided(call.out, call.out_dtype);
        rows[j].k = index.number(call.budget, call.budget_number);
        rows[j].t = index.number(call.temperature, call.temperature_number);
    }
    TileSolver<T, kLanes>(rows, count, call.hard != 0).solve();
    for (int j = 0; j < count; ++j) {
        const RowIndex index(call, first + j);
        if (rows[j].is_solved) {
            keep_threshold<T>(call, index, rows[j].threshold, kReadings);
        } else {
            forward_row<T>(call, Places(call.n), index, 1, over_limit);
        }
    }
}

template <class T>
void forward_tiles(const Call& call, LeastLimit* over_limit) {
    constexpr int kLanes = Real<T>::lanes, kFew = kSquare<T>;
    const RowGroups tiles(call, kLanes);
    const int threads =
        call.outer * call.inner * call.n >= kParallelScores ? int(call.threads) : 1;
    const int64_t share = std::max<int64_t>(
        1, std::min(tiles.count / (8 * threads), kParallelScores / (kLanes * call.n)));
    for_each(tiles.count, threads, share, [&](int64_t tile) {
        const int64_t first = tiles.first(tile);
        const auto count = int(tiles.rows(tile));
        if (count > kFew) return forward_tile<T, kLanes>(call, first, count, over_limit);
        forward_tile<T, kFew>(call, first, count, over_limit);
    });
}

// The same call on contiguous copies of some of its rows.
class StagedCall {
   public:
    // How many rows to copy at a time; 0 where rows are read well as they are, or are too long.
    static int64_t rows_at_a_time(const Call& call) {
        const bool is_across = RowGroups::lies_across(call, call.scores) ||
                               RowGroups::lies_across(call, call.out) ||
                               RowGroups::lies_across(call, call.grad);
        const int64_t fit = kStageBytes / (bytes_of_score(call) * stage_pitch(call.n));
        return is_across && fit > 1 ? std::min(fit, kStagedRows) : 0;
    }

    static int64_t bytes_of_score(const Call& call) {
        return width(call.dtype) + width(call.out_dtype) +
               (call.grad.data == nullptr ? 0 : width(call.grad_dtype)) +
               (call.mask.data == nullptr ? 0 : 1);
    }

    StagedCall(const Call& call, int64_t first, int64_t rows, char* memory) : staged_(call) {
        const RowIndex index(call, first);
        const auto skip = [&](Tensor& tensor, int64_t bytes) {
            if (tensor.data != nullptr) tensor.data += index.offset(tensor) * bytes;
            tensor.outer_stride = 0;
        };
        staged_.outer = 1;
        staged_.inner = rows;
        skip(staged_.scores, width(call.dtype));
        skip(staged_.out, width(call.out_dtype));
        skip(staged_.grad, width(call.grad_dtype));
        skip(staged_.mask, 1);
        for (Tensor* tensor : {&staged_.budget, &staged_.temperature, &staged_.warm_start})
            skip(*tensor, sizeof(double));
        const int64_t compute_bytes = call.dtype == kFloat64 ? 8 : 4;
        staged_.threshold += 2 * first * compute_bytes;
        if (call.d_budget != nullptr) staged_.d_budget += first;
        if (call.d_temperature != nullptr) staged_.d_temperature += first;
        if (call.passes != nullptr) staged_.passes += first;

        char* next = aligned(memory);
        stage(staged_.scores, width(call.dtype), &scores_, &next);
        stage(staged_.grad, width(call.grad_dtype), &grad_, &next);
        stage(staged_.out, width(call.out_dtype), &out_, &next);
        stage(staged_.mask, 1, &mask_, &next);
    }

    const Call& read(int threads) const {
        for (const StagedRows* rows : {&scores_, &grad_, &mask_}) rows->read(threads);
        return staged_;
    }

    void write(int threads) const { out_.write(threads); }

   private:
    // Rows that are contiguous stay where they are, and what is not given stays away.
    void stage(Tensor& tensor, int64_t bytes, StagedRows* rows, char** next) {
        if (tensor.data == nullptr || tensor.stride == 1) return;
        *rows = {tensor.data, tensor.stride, tensor.inner_stride, bytes, staged_.inner, staged_.n,
                 *next};
        *next += rows->size();
        tensor = {rows->copy, 0, stage_pitch(staged_.n), 1};
    }

    Call staged_;
    StagedRows scores_, grad_, mask_, out_;
};

// work(call, index, threads of the row) for every row, of copies where rows lie across the memory.
template <class Work>
void each_row_at_hand(const Call& call, Work work) {
    const int64_t at_a_time = StagedCall::rows_at_a_time(call);
    if (at_a_time == 0) {
        return each_row(call, [&](const RowIndex& index, int threads) {
            work(call, index, threads);
        });
    }
    const RowGroups groups(call, at_a_time);
    const auto threads = int(call.threads);
    const bool side_by_side = threads > 1 && groups.count >= 4 * threads;
    const int inside = side_by_side ? 1 : threads;
    StagePool pool(at_a_time * stage_pitch(call.n) * StagedCall::bytes_of_score(call));
    for_each(groups.count, side_by_side ? threads : 1, 1, [&](int64_t group) {
        StagePool::Memory memory = pool.take();
        const StagedCall copies(call, groups.first(group), groups.rows(group), memory.get());
        const Call& staged = copies.read(inside);
        for (int64_t row = 0; row < staged.inner; ++row)
            work(staged, RowIndex(staged, row), inside);
        copies.write(inside);
        pool.give_back(std::move(memory));
    });
}

// Rows in one dimension are inner rows, whose neighbours the copies look for.
Call with_rows_inside(Call call) {
    if (call.inner != 1) return call;
    std::swap(call.outer, call.inner);
    for (Tensor* tensor : {&call.scores, &call.mask, &call.budget, &call.temperature,
                           &call.warm_start, &call.grad, &call.out})
        std::swap(tensor->outer_stride, tensor->inner_stride);
    return call;
}

template <class T>
int64_t forward(const Call& given) {
    const Call call = with_rows_inside(given);
    ask_for_large_pages(call);
    LeastLimit over_limit;
    if (call.n > 0 && call.n <= kTileRow) {
        forward_tiles<T>(call, &over_limit);
    } else {
        const Places places(call.n);
        each_row_at_hand(call, [&](const Call& here, const RowIndex& index, int threads) {
            forward_row<T>(here, places, index, threads, &over_limit);
        });
    }
    return over_limit.get();
}

template <class T>
void backward(const Call& given) {
    const Call all = with_rows_inside(given);
    ask_for_large_pages(all);
    each_row_at_hand(all, [&](const Call& call, const RowIndex& index, int threads) {
        Row<T> row = make_row<T>(call, index, threads);
        const double t = index.number(call.temperature, call.temperature_number);
        const T* pair = reinterpret_cast<const T*>(call.threshold) + 2 * index.flat;
        Threshold threshold{double(pair[0]), double(pair[1]), false, false};
        threshold.is_hard = t < double(std::numeric_limits<T>::min()) || threshold.hi == kInfinity;
        const Strided grad = index.strided(call.grad, call.grad_dtype),
                      out = index.strided(call.out, call.out_dtype);
        const RowGradient gradient = write_gradient(row, grad, threshold, t, out);
        if (call.d_budget != nullptr) call.d_budget[index.flat] = gradient.budget;
        if (call.d_temperature != nullptr) call.d_temperature[index.flat] = gradient.temperature;
    });
}

// The band that the sample of a long row places, and whether it led to the threshold: what a study
// of the sampler looks at. The steps are those of solve_by_guess.
template <class T>
void sample_bands(const Call& call) {
    const Places places(call.n);
    each_row(call, [&](const RowIndex& index, int threads) {
        Row<T> row = make_row<T>(call, index, threads);
        const double k = index.number(call.budget, call.budget_number);
        const double t = index.number(call.temperature, call.temperature_number);
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

// The mask and the thresholds. Returns -1, or the least number of valid scores of a row whose
// budget is over it (that row is NaN), or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_forward(const Call* call) try {
    return call->dtype == kFloat64 ? forward<double>(*call) : forward<float>(*call);
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// Gradients for scores, budget and temperature. Returns -1 or kOutOfMemory.
LAPSUM_EXPORT int64_t lapsum_backward(const Call* call) try {
    call->dtype == kFloat64 ? backward<double>(*call) : backward<float>(*call);
    return -1;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

// The bands that samples place, into `threshold`, and whether each held, into `passes`; soft rows
// of at least kBandFrom scores. Returns -1 or kOutOfMemory.
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
