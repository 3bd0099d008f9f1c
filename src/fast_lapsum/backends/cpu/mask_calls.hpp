// Calls for masks, logarithms and thresholds, and for their gradients.

#pragma once

#include "each_row.hpp"
#include "short_gradients.hpp"
#include "short_rows.hpp"

namespace {

template <class T>
void forward_row(const Call& call, const Places& places, const RowIndex& index, int threads,
                 LeastLimit* over_limit) {
    Row<T> row = make_row<T>(call, index, threads);
    const double k = index.budget(call), t = index.temperature(call);
    double start = index.number(call.warm_start, kNaN);
    start = row.largest ? start : -start;
    const bool hard = call.output == kHardMask;
    const Solution solution = solve_row(row, places, k, t, start, hard);
    const Strided out = index.strided(call.out, call.out_dtype);
    if (hard && !std::isnan(solution.threshold.hi)) {
        write_hard_mask(row, solution.hard, k, out);
    } else if (call.output == kLogMask) {
        write_log_mask(row, solution, k, t, out);
    } else if (call.output != kThreshold) {
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
    for (int j = 0; j < count; ++j) rows[j] = make_tile_row<T>(call, RowIndex(call, first + j));
    TileSolver<T, kLanes> solver(rows, count);
    solver.solve(call.output == kHardMask);
    if (call.output != kThreshold) solver.write(Output(call.output));
    for (int j = 0; j < count; ++j) {
        const RowIndex index(call, first + j);
        if (rows[j].is_solved) {
            keep_threshold<T>(call, index, rows[j].solution.threshold, kReadings);
        } else {
            forward_row<T>(call, Places(call.n), index, 1, over_limit);
        }
    }
}

template <class T>
int64_t forward(const Call& given) {
    const Call call = with_rows_inside(given);
    ask_for_large_pages(call);
    LeastLimit over_limit;
    if (call.n > 0 && call.n <= kTileRow) {
        each_tile<T>(call, kDear, [&](int64_t first, int rows, auto lanes) {
            forward_tile<T>(call, first, rows, lanes, &over_limit);
        });
    } else {
        const Places places(call.n);
        each_row_at_hand(call, kDear, [&](const Call& here, const RowIndex& index, int threads) {
            forward_row<T>(here, places, index, threads, &over_limit);
        });
    }
    return over_limit.get();
}

template <class T>
void backward_row(const Call& call, const RowIndex& index, int threads) {
    Row<T> row = make_row<T>(call, index, threads);
    const double t = index.temperature(call);
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
    keep_gradient(call, index, gradient);
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
        rows[j].t = index.temperature(call);
        rows[j].threshold = kept_threshold<T>(call, index, rows[j].t);
    }
    if (call.output == kLogMask) {
        TileGradient<T, kLanes, LogGradientState>(rows, count).solve();
    } else {
        TileGradient<T, kLanes, GradientState>(rows, count).solve();
    }
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
    if (call.n > 0 && call.n <= kTileGradient && call.output != kThreshold) {
        each_tile<T>(call, kCheap, [&](int64_t first, int rows, auto lanes) {
            backward_tile<T>(call, first, rows, lanes);
        });
    } else {
        each_row_at_hand(call, kCheap, backward_row<T>);
    }
}

}  // namespace
