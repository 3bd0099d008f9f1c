// Every row of a call: side by side, one after the other, in copies, or several at a time.

#pragma once

#include "stage.hpp"
#include "tile_rows.hpp"

namespace {

// How many scores are worth a second thread. Waking one that sleeps takes some 50 us: what is saved
// of 48 * 1024 scores at 2 ns each (forward, and gradients of selections), and of twice as many at
// 1 ns (other gradients). A row has a price of its own, that of 16 scores.
enum Worth : int64_t { kDear = 48 * 1024, kCheap = 96 * 1024 };
constexpr int64_t kRowPrice = 16;
constexpr int64_t kHaste = 8 * kParallelScores;  // calls of fewer scores do not wait for late threads

bool is_worth_threads(const Call& call, int64_t rows, int64_t scores, Worth enough) {
    if (call.threads == 1 || g_is_forked || scores + rows * kRowPrice < enough) return false;
    return scores >= kHaste || g_lateness.is_over();
}

bool is_worth_threads(const Call& call, Worth enough) {
    const int64_t rows = call.outer * call.inner;
    return is_worth_threads(call, rows, rows * call.n, enough);
}

// Whether `parts` of a call are worked on side by side, else one after the other with all threads
// inside each row. Of rows that are too short for that, a few are better than one.
bool are_side_by_side(const Call& call, Worth enough, int64_t parts, int64_t many) {
    return is_worth_threads(call, enough) && parts > 1 &&
           (parts >= many || call.n < kParallelScores);
}

// work(call, index, threads of the row) for every row.
template <class Work>
void each_row(const Call& call, Worth enough, Work work) {
    const int64_t rows = call.outer * call.inner;
    const int threads = int(call.threads);
    const bool side_by_side = are_side_by_side(call, enough, rows, 8 * threads);
    // Larger shares for short rows; results do not depend on them.
    const int64_t share =
        std::max<int64_t>(1, std::min(rows / (8 * threads), kParallelScores / (call.n + 1)));
    for_each(rows, side_by_side ? threads : 1, share, [&](int64_t row) {
        work(call, RowIndex(call, row), side_by_side ? 1 : threads);
    });
}

// The same, of copies where rows lie across the memory.
template <class Work>
void each_row_at_hand(const Call& call, Worth enough, Work work) {
    const int64_t at_a_time = StagedCall::rows_at_a_time(call);
    if (at_a_time == 0) return each_row(call, enough, work);
    const RowGroups groups(call, call.inner, at_a_time);
    const auto threads = int(call.threads);
    const bool side_by_side = are_side_by_side(call, enough, groups.count, 4 * threads);
    const int inside = side_by_side ? 1 : threads;
    StagePool pool(StagedCall::bytes(call, at_a_time));
    for_each(groups.count, side_by_side ? threads : 1, 1, [&](int64_t group) {
        StagePool::Memory memory = pool.take();
        const int64_t first = groups.first(group);
        const StagedCall copies(call, first, groups.rows(group), memory.get());
        const Call& staged = copies.read(inside);
        for (int64_t row = 0; row < staged.inner; ++row)
            work(staged, RowIndex(0, row, first + row), inside);
        copies.write(inside);
        pool.give_back(std::move(memory));
    });
}

// work(first row, rows, lanes) for tiles of all rows; few rows take few lanes.
template <class T, class Work>
void each_tile(const Call& call, Worth enough, Work work) {
    constexpr int kLanes = Real<T>::lanes, kFew = kSquare<T>;
    // Where scores of neighbouring rows are neighbours in memory, a tile does not go beyond those.
    const int64_t rows = call.outer * call.inner,
                  run = lies_across(call, call.scores) ? call.inner : rows;
    const RowGroups tiles(call, run, kLanes);
    const int threads = is_worth_threads(call, enough) ? int(call.threads) : 1;
    const int64_t share = std::max<int64_t>(
        1, std::min(tiles.count / (8 * threads), kParallelScores / (kLanes * call.n)));
    for_each(tiles.count, threads, share, [&](int64_t tile) {
        const auto size = int(tiles.rows(tile));
        if (size > kFew) return work(tiles.first(tile), size, Lanes<kLanes>());
        work(tiles.first(tile), size, Lanes<kFew>());
    });
}

}  // namespace
