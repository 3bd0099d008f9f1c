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
//   write.hpp     from a threshold to mask and gradients
//   transpose.hpp, network.hpp, tile.hpp, tile_rows.hpp   several rows at a time, one in each lane
//   short_rows.hpp, short_gradients.hpp   short rows
//   stage.hpp     rows that lie across the memory
//   lapsum.cpp    the exported functions

#include "short_gradients.hpp"
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
void forward_tile(const Call& call, int64_t first, int count, Lanes<kLanes>,
                  LeastLimit* over_limit) {
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

// work(first row, rows, lanes) for tiles of all rows; few rows take few lanes.
template <class T, class Work>
void each_tile(const Call& call, Work work) {
    constexpr int kLanes = Real<T>::lanes, kFew = kSquare<T>;
    const RowGroups<Call> tiles(call, kLanes);
    const int threads =
        call.outer * call.inner * call.n >= kParallelScores ? int(call.threads) : 1;
    const int64_t share = std::max<int64_t>(
        1, std::min(tiles.count / (8 * threads), kParallelScores / (kLanes * call.n)));
    for_each(tiles.count, threads, share, [&](int64_t tile) {
        const auto rows = int(tiles.rows(tile));
        if (rows > kFew) return work(tiles.first(tile), rows, Lanes<kLanes>());
        work(tiles.first(tile), rows, Lanes<kFew>());
    });
}

// work(call, index, threads of the row) for every row, of copies where rows lie across the memory.
template <class Work>
void each_row_at_hand(const Call& call, Work work) {
    const int64_t at_a_time = StagedCall<Call>::rows_at_a_time(call);
    if (at_a_time == 0) {
        return each_row(call, [&](const RowIndex& index, int threads) {
            work(call, index, threads);
        });
    }
    const RowGroups<Call> groups(call, at_a_time);
    const auto threads = int(call.threads);
    const bool side_by_side = threads > 1 && groups.count >= 4 * threads;
    const int inside = side_by_side ? 1 : threads;
    StagePool pool(StagedCall<Call>::bytes(call, at_a_time));
    for_each(groups.count, side_by_side ? threads : 1, 1, [&](int64_t group) {
        StagePool::Memory memory = pool.take();
        const StagedCall<Call> copies(call, groups.first(group), groups.rows(group), memory.get());
        const Call& staged = copies.read(inside);
        for (int64_t row = 0; row < staged.inner; ++row)
            work(staged, RowIndex(staged, row), inside);
        copies.write(inside);
        pool.give_back(std::move(memory));
    });
}

template <class T>
int64_t forward(const Call& given) {
    const Call call = with_rows_inside(given);
    ask_for_large_pages(call);
    LeastLimit over_limit;
    if (call.n > 0 && call.n <= kTileRow) {
        each_tile<T>(call, [&](int64_t first, int rows, auto lanes) {
            forward_tile<T>(call, first, rows, lanes, &over_limit);
        });
    } else {
        const Places places(call.n);
        each_row_at_hand(call, [&](const Call& here, const RowIndex& index, int threads) {
            forward_row<T>(here, places, index, threads, &over_limit);
        });
    }
    return over_limit.get();
}

template <class T>
Threshold kept_threshold(const Call& call, const RowIndex& index, double t) {
    const T* pair = reinterpret_cast<const T*>(call.threshold) + 2 * index.flat;
    Threshold threshold{double(pair[0]), double(pair[1]), false, false};
    threshold.is_hard = t < double(std::numeric_limits<T>::min()) || threshold.hi == kInfinity;
    return threshold;
}

void keep_gradient(const Call& call, const RowIndex& index, const RowGradient& gradient) {
    if (call.d_budget != nullptr) call.d_budget[index.flat] = gradient.budget;
    if (call.d_temperature != nullptr) call.d_temperature[index.flat] = gradient.temperature;
}

template <class T>
void backward_row(const Call& call, const RowIndex& index, int threads) {
    Row<T> row = make_row<T>(call, index, threads);
    const double t = index.number(call.temperature, call.temperature_number);
    const Strided grad = index.strided(call.grad, call.grad_dtype),
                  out = index.strided(call.out, call.out_dtype);
    keep_gradient(call, index,
                  write_gradient(row, grad, kept_threshold<T>(call, index, t), t, out));
}

// forward_tile's counterpart.
template <class T, int kLanes>
void backward_tile(const Call& call, int64_t first, int count, Lanes<kLanes>) {
    GradientRow<T> rows[kLanes];
    for (int j = 0; j < count; ++j) {
        const RowIndex index(call, first + j);
        rows[j].row = make_row<T>(call, index, 1);
        rows[j].grad.scores = index.strided(call.grad, call.grad_dtype);
        rows[j].grad.n = call.n;
        rows[j].out = index.strided(call.out, call.out_dtype);
        rows[j].t = index.number(call.temperature, call.temperature_number);
        rows[j].threshold = kept_threshold<T>(call, index, rows[j].t);
    }
    TileGradient<T, kLanes>(rows, count).solve();
    for (int j = 0; j < count; ++j) {
        const RowIndex index(call, first + j);
        if (rows[j].is_solved) {
            keep_gradient(call, index, rows[j].gradient);
        } else {
            backward_row<T>(call, index, 1);
        }
    }
}

template <class T>
void backward(const Call& given) {
    const Call call = with_rows_inside(given);
    ask_for_large_pages(call);
    if (call.n > 0 && call.n <= kTileGradient) {
        each_tile<T>(call, [&](int64_t first, int rows, auto lanes) {
            backward_tile<T>(call, first, rows, lanes);
        });
    } else {
        each_row_at_hand(call, [&](const Call& here, const RowIndex& index, int threads) {
            backward_row<T>(here, index, threads);
        });
    }
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
