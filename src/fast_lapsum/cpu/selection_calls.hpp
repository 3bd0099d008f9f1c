// Calls for whole scores: the selected ones with their weights, and random masks.

#pragma once

#include "each_row.hpp"
#include "sample.hpp"

namespace {

template <class T>
void select(const SelectCall& given) {
    const Call call = with_rows_inside(given.call);
    const Places places(call.n);
    each_row_at_hand(call, [&](const Call& here, const RowIndex& index, int threads) {
        Row<T> row = make_row<T>(here, index, threads);
        double k = double(given.count);
        const double t = index.temperature(here);
        Solution solution = solve_row(row, places, k, t, kNaN, true);
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
    each_row_at_hand(call, [&](const Call& here, const RowIndex& index, int threads) {
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
    each_row_at_hand(call, [&](const Call& here, const RowIndex& index, int threads) {
        Row<T> row = make_row<T>(here, index, threads);
        const double k = index.budget(here), t = index.temperature(here);
        Solution solution = solve_row(row, places, k, t, kNaN, false);
        over_limit.add(solution.over_limit);
        if (k != std::floor(k)) solution.threshold = {};
        write_sample(row, places, solution.threshold, k, t, given.start[index.flat],
                     index.strided(here.out, here.out_dtype));
    });
    return over_limit.get();
}

}  // namespace
