// Calls for sorted rows: what they say, and every row of them on one thread or several.

#pragma once

#include <vector>

#include "each_row.hpp"
#include "ranking_order.hpp"

namespace {

// Rows lie one after the other; the Python side packs this record.
struct RankingCall {
    int64_t dtype, rows, n, m, threads, is_masked;
    const void* ordered;         // [rows, n], sorted, NaN last
    const int64_t* order;        // [rows, n]
    const double* temperature;   // [rows]
    const double* masses;        // [m], or none: those of a sort
    const void* grad;            // [rows, n] of ranks, [rows, m] of thresholds
    int32_t* count;              // [rows, m]
    void *low, *up;              // [rows, m]
    void* out;                   // [rows, n], or the thresholds [rows, m]
};

// Ranking kernels see rows that have gone through this.
struct OrderCall {
    int64_t dtype, rows, n, threads, descending;
    const void* scores;  // [rows, n]
    void* ordered;       // [rows, n]
    int64_t* order;      // [rows, n]
};

struct SumsCall {
    int64_t dtype, rows, columns, n, threads, downward;
    const void *gaps, *values;  // [rows, n - 1], [rows, columns, n]
    void* out;                  // [rows, columns, n]
};

// Contiguous rows, as those who decide how many threads they are worth take them.
Call shape_of(int64_t rows, int64_t n, int64_t threads) {
    Call shape{};
    shape.outer = rows;
    shape.inner = 1;
    shape.n = n;
    shape.threads = threads;
    return shape;
}

// work(row) for every row: side by side where that is worth waking threads.
template <class Work>
void each_sorted_row(int64_t rows, int64_t n, int64_t threads, Work work) {
    const Call shape = shape_of(rows, n, threads);
    const bool side_by_side = rows > 1 && is_worth_threads(shape, kDear);
    const int64_t share =
        std::max<int64_t>(1, std::min(rows / (8 * threads), kParallelScores / (n + 1)));
    for_each(rows, side_by_side ? int(threads) : 1, share, work);
}

// Large pages for `count` fresh numbers that are about to be written.
template <class T>
void ask_for_numbers(void* data, int64_t count) {
    constexpr int64_t kAsk = 4 << 20;
    const int64_t bytes = count * int64_t(sizeof(T));
    if (bytes >= kAsk) ask_for_large_pages(data, bytes);
}

template <class T>
SortedRow<T> sorted_row(const RankingCall& call, int64_t row) {
    const int64_t at = row * call.n;
    return {static_cast<const T*>(call.ordered) + at, call.order == nullptr ? nullptr : call.order + at,
            call.n, call.temperature[row], call.is_masked != 0};
}

template <class T>
Thresholds<T> thresholds_of(const RankingCall& call, int64_t row, void* b) {
    const int64_t at = row * call.m;
    return {b == nullptr ? nullptr : static_cast<T*>(b) + at, call.count + at,
            static_cast<T*>(call.low) + at, static_cast<T*>(call.up) + at};
}

// Few long rows are one after the other, by all threads.
template <class T>
void order_rows(const OrderCall& call) {
    ask_for_numbers<T>(call.ordered, call.rows * call.n);
    ask_for_numbers<int64_t>(call.order, call.rows * call.n);
    const Call shape = shape_of(call.rows, call.n, call.threads);
    each_row(shape, kDear, [&](const Call&, const RowIndex& index, int threads) {
        const int64_t at = index.flat * call.n;
        const int inside = is_worth_threads(shape, 1, call.n, kDear) ? threads : 1;
        order_row(static_cast<const T*>(call.scores) + at, call.n, call.descending != 0, inside,
                  static_cast<T*>(call.ordered) + at, call.order + at);
    });
}

template <class T>
void rank_rows(const RankingCall& call) {
    ask_for_numbers<T>(call.out, call.rows * call.n);
    each_sorted_row(call.rows, call.n, call.threads, [&](int64_t row) {
        rank_row(sorted_row<T>(call, row), static_cast<T*>(call.out) + row * call.n);
    });
}

template <class T>
void rank_gradients(const RankingCall& call) {
    ask_for_numbers<T>(call.out, call.rows * call.n);
    each_sorted_row(call.rows, call.n, call.threads, [&](int64_t row) {
        rank_gradient_row(sorted_row<T>(call, row), static_cast<const T*>(call.grad) + row * call.n,
                          static_cast<T*>(call.out) + row * call.n);
    });
}

template <class T>
void threshold_rows(const RankingCall& call) {
    std::vector<int64_t> ascending;  // of masses that are numbers
    for (int64_t j = 0; call.masses != nullptr && j < call.m; ++j)
        if (!std::isnan(call.masses[j])) ascending.push_back(j);
    std::sort(ascending.begin(), ascending.end(),
              [&](int64_t i, int64_t j) { return call.masses[i] < call.masses[j]; });
    for (void* fresh : {call.out, call.low, call.up}) ask_for_numbers<T>(fresh, call.rows * call.m);
    ask_for_numbers<int32_t>(call.count, call.rows * call.m);
    const auto m = call.masses == nullptr ? call.m : int64_t(ascending.size());
    each_sorted_row(call.rows, call.n, call.threads, [&](int64_t row) {
        const Thresholds<T> out = thresholds_of<T>(call, row, call.out);
        for (int64_t j = 0; m < call.m && j < call.m; ++j) {
            out.b[j] = T(kNaN);
            out.low[j] = out.up[j] = T(0);
            out.count[j] = int32_t(call.n);
        }
        const int64_t* places = call.masses == nullptr ? nullptr : ascending.data();
        threshold_row(sorted_row<T>(call, row), call.masses, places, m, out);
    });
}

template <class T>
void threshold_gradients(const RankingCall& call) {
    ask_for_numbers<T>(call.out, call.rows * call.n);
    each_sorted_row(call.rows, call.n, call.threads, [&](int64_t row) {
        threshold_gradient_row(sorted_row<T>(call, row),
                               static_cast<const T*>(call.grad) + row * call.m, call.m,
                               thresholds_of<T>(call, row, nullptr),
                               static_cast<T*>(call.out) + row * call.n);
    });
}

template <class T>
void sum_columns(const SumsCall& call) {
    each_sorted_row(call.rows * call.columns, call.n, call.threads, [&](int64_t column) {
        const int64_t row = column / call.columns, at = column * call.n;
        decayed_sums(static_cast<const T*>(call.gaps) + row * (call.n - 1),
                     static_cast<const T*>(call.values) + at, call.n, call.downward != 0,
                     static_cast<T*>(call.out) + at);
    });
}

}  // namespace
