// Calls for whole scores: the selected ones with their weights, and random masks.

#pragma once

#include "each_row.hpp"
#include "sample.hpp"
#include "short_rows.hpp"

namespace {

// work(call, index, row, solution) for every row; short rows are solved a tile at a time.
template <class T, class Work>
void each_solution(const Call& call, const Places& places, bool hard, Work work) {
    const auto solve_alone = [&](const Call& here, const RowIndex& index, Row<T>& row) {
        const double k = index.budget(here), t = index.temperature(here);
        return solve_row(row, places, k, t, kNaN, hard);
    };
    if (call.n == 0 || call.n > kTileRow) {
        const auto alone = [&](const Call& here, const RowIndex& index, int threads) {
            Row<T> row = make_row<T>(here, index, threads);
            const Solution solution = solve_alone(here, index, row);
            work(here, index, row, solution);
        };
        return each_row_at_hand(call, kDear, alone);
    }
    each_tile<T>(call, kDear, [&](int64_t first, int count, auto lanes) {
        constexpr int kLanes = decltype(lanes)::count;
        TileRow<T> rows[kLanes];
        for (int j = 0; j < count; ++j) rows[j] = make_tile_row<T>(call, RowIndex(call, first + j));
        TileSolver<T, kLanes>(rows, count).solve(hard);
        for (int j = 0; j < count; ++j) {
            const RowIndex index(call, first + j);
            if (!rows[j].is_solved) rows[j].solution = solve_alone(call, index, rows[j].row);
            work(call, index, rows[j].row, rows[j].solution);
        }
    });
}

template <class T>
void select(const SelectCall& given) {
    const Call call = with_rows_inside(given.call);
    const Places places(call.n);
    each_solution<T>(call, places, true, [&](const Call& here, const RowIndex& index, Row<T>& row,
                                             Solution solution) {
        double k = double(given.count);
        const double t = index.temperature(here);
        if (solution.over_limit >= 0) {  // a row of fewer scores gives all it has
            k = double(solution.over_limit);
            solution = solve_row(row, places, k, t, kNaN, true);
        }
        const int64_t at = index.flat * given.count;
        const Strided weights{given.values + at * width(here.out_dtype), 1, here.out_dtype};
        write_selection(row, solution, int64_t(k), t, given.sorted != 0, given.count,
                        given.indices + at, weights);
        keep_threshold<T>(here, index, solution.threshold, row.passes);
    });
}

template <class T>
void select_backward(const SelectCall& given) {
    const Call call = with_rows_inside(given.call);
    ask_for_large_pages(call);
    each_row_at_hand(call, kDear, [&](const Call& here, const RowIndex& index, int threads) {
        Row<T> row = make_row<T>(here, index, threads);
        const double t = index.temperature(here);
        const int64_t at = index.flat * given.count;
        const Strided grad{given.values + at * width(here.grad_dtype), 1, here.grad_dtype};
        keep_gradient(here, index,
                      write_selection_gradient(row, given.indices + at, given.count, grad,
                                               kept_threshold<T>(here, index, t), t,
                                               index.strided(here.out, here.out_dtype)));
    });
}

template <class T>
int64_t sample(const SampleCall& given) {
    const Call call = with_rows_inside(given.call);
    ask_for_large_pages(call);
    const Places places(call.n);
    LeastLimit over_limit;
    each_solution<T>(call, places, false, [&](const Call& here, const RowIndex& index, Row<T>& row,
                                              Solution solution) {
        const double k = index.budget(here), t = index.temperature(here);
        over_limit.add(solution.over_limit);
        if (k != std::floor(k)) solution.threshold = {};
        write_sample(row, places, solution.threshold, k, t, given.start[index.flat],
                     index.strided(here.out, here.out_dtype));
    });
    return over_limit.get();
}

}  // namespace
