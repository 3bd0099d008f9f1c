// Calls for masks, logarithms and thresholds, and for their gradients.

#pragma once

#include "each_row.hpp"
#include "short_gradients.hpp"
#include "short_rows.hpp"

namespace {

// A row, wherever it is, and what the call asks for of it.
template <class T>
void forward_given(const Call& call, const Places& places, const RowIndex& index, Row<T>& row,
                   const Strided& out, LeastLimit* over_limit) {
    const double k = index.budget(call), t = index.temperature(call);
    double start = index.number(call.warm_start, kNaN);
    start = row.largest ? start : -start;
    const bool hard = call.output == kHardMask;
    const Solution solution = solve_row(row, places, k, t, start, hard);
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

template <class T>
void forward_row(const Call& call, const Places& places, const RowIndex& index, int threads,
                 LeastLimit* over_limit) {
    Row<T> row = make_row<T>(call, index, threads);
    const Strided out = index.strided(call.out, call.out_dtype);
    forward_given<T>(call, places, index, row, out, over_limit);
}

// A row of a tile: of which call, and which of its rows.
struct CallRow {
    const Call& call;
    RowIndex index;
};

// Rows at(0) ... at(count - 1) as one tile; those without a plain answer one by one.
template <class T, int kLanes, class At>
void forward_tile(At at, int count, Lanes<kLanes>, LeastLimit* over_limit) {
    constexpr int kReadings = 2;  // to sort and to sum
    TileRow<T> rows[kLanes];
    for (int j = 0; j < count; ++j) {
        const auto& own = at(j);
        rows[j] = make_tile_row<T>(own.call, own.index);
    }
    const auto output = Output(at(0).call.output);
    TileSolver<T, kLanes> solver(rows, count);
    solver.solve(output == kHardMask);
    if (output != kThreshold) solver.write(output);
    for (int j = 0; j < count; ++j) {
        const auto& own = at(j);
        if (rows[j].is_solved) {
            keep_threshold<T>(own.call, own.index, rows[j].solution.threshold, kReadings);
        } else {
            forward_row<T>(own.call, Places(own.call.n), own.index, 1, over_limit);
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
            const auto at = [&](int j) { return CallRow{call, RowIndex(call, first + j)}; };
            forward_tile<T>(at, rows, lanes, &over_limit);
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
void backward_given(const Call& call, const RowIndex& index, Row<T>& row, const Strided& grad,
                    const Strided& out) {
    const double t = index.temperature(call);
    const Threshold threshold = kept_threshold<T>(call, index, t);
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

template <class T>
void backward_row(const Call& call, const RowIndex& index, int threads) {
    Row<T> row = make_row<T>(call, index, threads);
    backward_given<T>(call, index, row, index.strided(call.grad, call.grad_dtype),
                      index.strided(call.out, call.out_dtype));
}

// forward_tile's counterpart.
template <class T, int kLanes, class At>
void backward_tile(At at, int count, Lanes<kLanes>) {
    GradientRow<T> rows[kLanes];
    for (int j = 0; j < count; ++j) {
        const auto& own = at(j);
        const Call& call = own.call;
        const RowIndex& index = own.index;
        rows[j].row = make_row<T>(call, index, 1);
        rows[j].grad.scores = index.strided(call.grad, call.grad_dtype);
        rows[j].grad.n = call.n;
        rows[j].out = index.strided(call.out, call.out_dtype);
        rows[j].t = index.temperature(call);
        rows[j].threshold = kept_threshold<T>(call, index, rows[j].t);
    }
    if (at(0).call.output == kLogMask) {
        TileGradient<T, kLanes, LogGradientState>(rows, count).solve();
    } else {
        TileGradient<T, kLanes, GradientState>(rows, count).solve();
    }
    for (int j = 0; j < count; ++j) {
        const auto& own = at(j);
        if (rows[j].is_solved) {
            keep_gradient(own.call, own.index, rows[j].gradient);
        } else {
            backward_row<T>(own.call, own.index, 1);
        }
    }
}

template <class T>
void backward(const Call& given) {
    const Call call = with_rows_inside(given);
    ask_for_large_pages(call);
    if (call.n > 0 && call.n <= kTileGradient && call.output != kThreshold) {
        each_tile<T>(call, kCheap, [&](int64_t first, int rows, auto lanes) {
            const auto at = [&](int j) { return CallRow{call, RowIndex(call, first + j)}; };
            backward_tile<T>(at, rows, lanes);
        });
    } else {
        each_row_at_hand(call, kCheap, backward_row<T>);
    }
}

}  // namespace
